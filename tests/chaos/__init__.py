"""Kill and freeze the processes of a run at random moments, and check what it makes of that.

schedule    when which kind of process is struck, and how: drawn from a seed
processes   the processes of a run: which there are, and what they leave behind
nodes       a cluster on this machine whose nodes can be lost
trial       one run as a child process that is struck by a schedule, resumed, and judged
oracles     what must hold of the journal of any run, however often it was struck
schedules   the same in virtual time, by the thousand
"""
