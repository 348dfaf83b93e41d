"""A small, dumb simulator of a parameter server and its network, which shares no code with
`raysync.virtual`: a list of what happens next, one worker after another, all in plain dicts.

It takes the settings of an experiment as they are written and returns when pushes arrive. It knows
BSP and ASP, workers of a constant step time, and servers that stand apart or beside workers. What
shares a link queues there, or flows at equal rates: then all rates are found anew at every step.
"""

from math import inf


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
        self.flows = []
        """Each with its `left` bytes, its `limit`, its `links` and how many times it is on each,
        and what to do when it has ended."""
        self.rate_of = {}
        """Link -> its bytes per second."""
        self.tied = False
        """Whether gradients of workers of different kinds have arrived at one time: their order
        is anybody's, and matters."""
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

    def kind(self, name):
        """Return what sets a worker apart from others: its group, and the servers beside it."""
        return name[0], self.travels(name), name in self.hosts

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

    def transfer(self, name, is_up, begin, then):
        """Send a vector from that time on; `then` comes when its last byte is there."""
        group, net = self.workers[name], self.net
        direction = "up" if is_up else "down"
        part = self.travels(name)
        size = self.size * part
        if not size:
            self.later(begin, then, name)
            return
        rates = [net["link"]["bandwidth_bytes_per_s"], group["link"]["bandwidth_bytes_per_s"]]
        if (regions := net["regions"]) is not None:
            here = regions["names"].index(group["region"])
            home = regions["names"].index(regions["server"])
            row, column = (here, home) if is_up else (home, here)
            rates.append(regions["bandwidth_bytes_per_s"][row][column])
        own = min([rate for rate in rates if rate], default=inf)
        shared = []
        if rate := self.server_rate():
            shared.append((("server", direction), rate, 1 / self.shards))
            is_host = name in self.hosts and name not in self.node
            if is_host:  # its own way is over a server's link
                shared.append((("server", "down" if is_up else "up"), rate, 1 / self.shards))
        if name in self.node and self.node[name]["link"]["bandwidth_bytes_per_s"]:
            rate = self.node[name]["link"]["bandwidth_bytes_per_s"]
            shared.append(((self.node[name]["name"], direction), rate, 1))
        there = self.one_way_latency(name, is_up)
        back = self.one_way_latency(name, not is_up)
        trips = 0 if is_up else net["pull_round_trips"] * (there + back)
        if shared:
            connections = part * self.shards
            flow = {
                "left": size / connections,
                "size": size,
                "limit": own / connections,
                "links": {link: of_it * connections for link, _, of_it in shared},
                "name": name,
                "then": then,
                "after": there,
            }
            self.rate_of |= {link: rate for link, rate, _ in shared}
            self.later(begin + trips, "flows", flow)
            return
        self.later(begin + size / own + there + trips, then, name)

    def rates(self):
        """Return the rate of each flow: all rise together until something holds them."""
        rates, rising = [0.0] * len(self.flows), set(range(len(self.flows)))
        free = dict(self.rate_of)
        while rising:
            on = {link: sum(self.flows[n]["links"].get(link, 0.0) for n in rising) for link in free}
            steps = [free[link] / load for link, load in on.items() if load]
            steps += [self.flows[n]["limit"] - rates[n] for n in rising]
            step = min(steps)
            for n in rising:
                rates[n] += step
                for link, times in self.flows[n]["links"].items():
                    free[link] -= times * step
            full = {
                link
                for link, load in on.items()
                if load and free[link] <= 1e-9 * self.rate_of[link]
            }
            rising = {
                n for n in rising
                if rates[n] < self.flows[n]["limit"] * (1 - 1e-12)
                and not full & set(self.flows[n]["links"])
            }  # fmt: skip
        return rates

    def flow_until(self, now, until):
        """Let the flows flow; return the time to which they did: the first end, or `until`."""
        if not self.flows:
            return until
        rates = self.rates()
        ends = [now + flow["left"] / rate for flow, rate in zip(self.flows, rates, strict=True)]
        at = min(min(ends), until)
        for flow, rate in zip(self.flows, rates, strict=True):
            flow["left"] -= rate * (at - now)
        ended = [flow for flow in self.flows if flow["left"] <= 1e-9 * flow["size"]]
        for flow in ended:
            self.flows.remove(flow)
            self.later(at + flow["after"], flow["then"], flow["name"])
        return at

    def begin(self, name, weights_at):
        """Pull weights that are there from that moment on, and compute."""
        self.transfer(name, False, weights_at, "pulled")

    def update(self, now, pushes):
        """Return when the weights of an update are there, which is sent now."""
        reading = pushes * self.size / self.shards / (self.net["update_bytes_per_s"] or 1e300)
        self.server_idle_at = max(now, self.server_idle_at) + self.net["update_s"] + reading
        return self.server_idle_at

    def run(self, paradigm, count):
        for name in self.workers:
            self.begin(name, 0.0)
        arrived, left, now, last = [], count, 0.0, None
        while left > 0:
            event = min(self.todo, default=(inf,))
            reached = self.flow_until(now, event[0])
            if reached < event[0] or event not in self.todo:
                now = reached
                continue
            self.todo.remove(event)
            now, _, what, about = event
            [name] = about
            if what == "arrived":  # from here on one is served after another
                if last and self.kind(last[0]) != self.kind(name) and now - last[1] <= 1e-9 * now:
                    self.tied = True
                last = name, now
            if what == "flows":
                self.flows.append(name)
            elif what == "pulled":
                self.later(now + self.workers[name]["step_s"], "computed", name)
            elif what == "computed":
                self.transfer(name, True, now, "arrived")
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
