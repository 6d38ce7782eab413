"""Where a request's tokens are: prefix hits, copies from the CPU tier, growth, and what stays at the end."""

from array import array
from collections.abc import Callable, Sequence

from harness.simulator.core_faults import CoreFaults
from harness.simulator.cpu_tier import CpuTier, worth_copying
from harness.simulator.pool import Pool
from harness.simulator.running import Running
from harness.simulator.types import Limits


class Memory:
    """Both tiers. Every method leaves a request's `computed`, `shared`, `owned` and `node` consistent."""

    def __init__(self, limits: Limits, faults: CoreFaults) -> None:
        unit = max(limits.page_size, limits.hash_page)
        self.pool = Pool(limits.max_total_token_num, limits.page_size, unit)
        self.cpu = CpuTier(limits.cpu_tokens, limits.cpu_page)
        self._unit = unit
        self._faults = faults
        self._leaked = False
        self.holds = 0  # of `hold`, not yet released

    def enter(self, running: Running) -> int:
        """Look for the request's prefix in both tiers. Returns how many tokens were copied from the CPU."""
        running.gpu_cached = running.cpu_cached = running.cpu_copied = 0
        if not running.request.use_cache:
            return 0
        limit = (len(running.ids) - 1) // self._unit * self._unit
        key = running.key(len(running.ids))
        self._hit(running, key, limit)
        if self._faults.cold_hits and running.gpu_cached < limit:
            self._pretend(running, limit)
        return self._copy(running, key)

    def hold(self, prompt: Sequence[int]) -> tuple[int, Callable[[], None]]:
        """As `Scheduler.hold`."""
        limit = (len(prompt) - 1) // self._unit * self._unit
        hit, node = self.pool.tree.match(array("I", prompt).tobytes(), limit)
        self.pool.tree.lock(node)
        self.holds += 1

        def release() -> None:
            self.pool.tree.unlock(node)
            self.holds -= 1

        return hit, release

    def _hit(self, running: Running, key: bytes, limit: int) -> None:
        tree = self.pool.tree
        hit, node = tree.match(key, limit)
        if self._faults.short_hit and hit:
            hit, node = tree.match(key, hit - self._unit)
        if not hit:
            return
        tree.lock(node)
        running.node = node
        running.computed = running.shared = running.gpu_cached = hit
        if self._faults.warm_differs:
            running.speech.corrupt(b"warm")

    def _pretend(self, running: Running, limit: int) -> None:
        if self.room(running, limit - running.computed) <= self.pool.available:
            self.grow(running, limit - running.computed)
            running.computed = running.gpu_cached = limit

    def _copy(self, running: Running, key: bytes) -> int:
        """The CPU hit is reported before it is decided whether copying it is worth while."""
        if self._faults.cpu_never_read:
            return 0
        need = self.cpu.match(key, len(running.ids) - 1) - running.computed
        if need <= 0:
            return 0
        running.cpu_cached = need
        fits = self.room(running, need) <= self.pool.available
        if self._faults.cpu_logged_not_copied or not fits or not worth_copying(need, running.prompt_length):
            return 0
        self.grow(running, need)
        running.computed += need
        running.cpu_copied = need
        if self._faults.reload_corrupts:
            running.speech.corrupt(b"reload")
        if self._faults.accept_collapse_after_reload:
            running.accepts = False
        return need

    def room(self, running: Running, tokens: int) -> int:
        """What `tokens` more would take out of the pool; 0 if the request's last page has room for them."""
        wanted = self.pool.pages(running.computed + tokens)
        return max(0, wanted - running.shared - running.owned)

    def grow(self, running: Running, tokens: int) -> None:
        more = self.room(running, tokens)
        if more:
            self.pool.take(more)
            running.owned += more

    def leave(self, running: Running) -> None:
        """The request ends or pauses: what is computed of it stays in the tree, for nobody."""
        tree = self.pool.tree
        key = running.key(running.computed)
        self.pool.keep(key, running.shared, running.owned)
        if running.node is not None:
            tree.unlock(running.node)
        running.computed = running.shared = running.owned = 0
        running.node = None

    def end(self, running: Running) -> None:
        """As `leave`, for good: the prompt goes to the CPU tier if all of it was computed."""
        complete = running.computed >= running.prompt_length
        leaked = running.key(running.computed)
        self.leave(running)
        if complete:
            self.cpu.store(running.key(running.prompt_length), running.prompt_length)
        if self._faults.pool_leak and not self._leaked:
            hit, node = self.pool.tree.match(leaked, self._unit)
            self.pool.tree.lock(node)
            self._leaked = hit > 0
