"""A small, dumb simulator of a parameter server and its network, which shares no code with
`raysync.virtual`: a list of what happens next, one worker after another, all in plain dicts.

It takes the settings of an experiment as they are written and returns when pushes arrive. It knows
BSP and ASP, workers of a constant step time, and servers that stand apart or beside workers.
"""


class Cluster:
    """One run."""

    def __init__(self, settings, vector_bytes):
        self.net = settings["network"]
        self.size = vector_bytes
        self.shards = settings["cluster"]["server_shards"]
        self.beside = settings["cluster"]["server_placement"] == "with-workers"
        self.workers = {
            f"{group['name']}-{n}": group
            for group in settings["workers"]
            for n in range(group["count"])
        }
        self.node = {
            f"{name}-{n}": node
            for node in self.net["nodes"]
            for name in node["workers"]
            for n in range(next(g["count"] for g in settings["workers"] if g["name"] == name))
        }
        slots = list(self.workers)
        self.hosts = [slots[n % len(slots)] for n in range(self.shards)] if self.beside else []
        self.busy_until = {}
        """(link, direction) -> when it is idle again."""
        self.todo = []
        self.order = 0
        self.pushes = {name: [] for name in self.workers}
        self.server_idle_at = self.coordinator_idle_at = 0.0

    def later(self, at, what, *about):
        self.order += 1
        self.todo.append((at, self.order, what, about))

    def machine(self, name):
        """Return what a worker shares with the servers beside it: its node, or nothing but it."""
        return self.node[name]["name"] if name in self.node else ("alone", name)

    def travels(self, name):
        """Return the part of a vector that leaves the machine of a worker."""
        near = [host for host in self.hosts if self.machine(host) == self.machine(name)]
        return (self.shards - len(near)) / self.shards

    def server_rate(self):
        """Return the bytes per second of each server's link; None: as many as come."""
        links = [self.net["link"]] if self.hosts else []
        for host in self.hosts:
            links.append(self.workers[host]["link"])
            if host in self.node:
                links.append(self.node[host]["link"])
        rates = [link["bandwidth_bytes_per_s"] for link in links]
        rates.append(self.net["server_bandwidth_bytes_per_s"])
        return min([rate for rate in rates if rate], default=None)

    def one_way_latency(self, name, is_up):
        group = self.workers[name]
        total = self.net["link"]["latency_s"] + group["link"]["latency_s"]
        if name in self.node:
            total += self.node[name]["link"]["latency_s"]
        if (regions := self.net["regions"]) is not None:
            here = regions["names"].index(group["region"])
            home = regions["names"].index(regions["server"])
            total += regions["latency_s"][here][home] if is_up else regions["latency_s"][home][here]
        return total

    def transfer(self, name, is_up, begin):
        """Send a vector; return when its last byte is there."""
        group, net = self.workers[name], self.net
        direction = "up" if is_up else "down"
        size = self.size * self.travels(name)
        if not size:
            return begin
        ends = [begin]
        for link in (net["link"], group["link"]):
            if link["bandwidth_bytes_per_s"]:
                ends.append(begin + size / link["bandwidth_bytes_per_s"])
        if (regions := net["regions"]) is not None:
            here = regions["names"].index(group["region"])
            home = regions["names"].index(regions["server"])
            row, column = (here, home) if is_up else (home, here)
            ends.append(begin + size / regions["bandwidth_bytes_per_s"][row][column])
        if rate := self.server_rate():
            ends.append(self.occupy("server", direction, begin, size / self.shards / rate))
        if name in self.node and self.node[name]["link"]["bandwidth_bytes_per_s"]:
            seconds = size / self.node[name]["link"]["bandwidth_bytes_per_s"]
            ends.append(self.occupy(self.node[name]["name"], direction, begin, seconds))
        there = self.one_way_latency(name, is_up)
        back = self.one_way_latency(name, not is_up)
        trips = 0 if is_up else net["pull_round_trips"]
        return max(ends) + there + trips * (there + back)

    def occupy(self, link, direction, begin, seconds):
        end = max(begin, self.busy_until.get((link, direction), 0.0)) + seconds
        self.busy_until[link, direction] = end
        return end

    def begin(self, name, weights_at):
        """Pull weights that are there from that moment on, and compute."""
        pulled_at = self.transfer(name, False, weights_at)
        self.later(pulled_at + self.workers[name]["step_s"], "computed", name)

    def update(self, now, pushes):
        """Return when the weights of an update are there, which is sent now."""
        reading = pushes * self.size / self.shards / (self.net["update_bytes_per_s"] or 1e300)
        self.server_idle_at = max(now, self.server_idle_at) + self.net["update_s"] + reading
        return self.server_idle_at

    def run(self, paradigm, count):
        for name in self.workers:
            self.begin(name, 0.0)
        arrived, left = [], count
        while left > 0:
            event = min(self.todo)
            self.todo.remove(event)
            now, _, what, about = event
            [name] = about
            if what == "computed":
                self.later(self.transfer(name, True, now), "arrived", name)
            elif what == "arrived" and self.net["push_s"]:
                self.coordinator_idle_at = max(now, self.coordinator_idle_at) + self.net["push_s"]
                self.later(self.coordinator_idle_at, "pushed", name)
            else:
                self.pushes[name].append(now)
                arrived.append(name)
                if paradigm == "asp":
                    left -= 1
                    self.begin(name, self.update(now, 1))
                elif len(arrived) % len(self.workers) == 0:
                    left -= len(self.workers)
                    weights_at = self.update(now, len(self.workers))
                    for each in arrived[-len(self.workers) :]:  # released as they came
                        self.begin(each, weights_at)
        return self.pushes
