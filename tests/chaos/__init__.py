"""Kill and freeze the processes of a run at random moments, and check what it makes of that.

schedule    when which kind of process is struck, and how: drawn from a seed
processes   the processes of a run: which there are, and what they leave behind
oracles     what must hold of the journal of any run, however often it was struck
trial       one run as a child process that is struck by a schedule, resumed, and judged
"""
