"""What can be made to go wrong inside the engine: caches, pausing and speculation."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class CoreFaults:
    """All off by default. "Output changes" means from that moment on, for that request."""

    cold_hits: bool = False  # a prompt never seen is reported, and run, as a full hit
    short_hit: bool = False  # a hit is one hash page shorter than it should be
    warm_differs: bool = False  # output changes after a GPU hit
    cpu_never_read: bool = False  # prompts go to the CPU tier, and none comes back
    cpu_logged_not_copied: bool = False  # a CPU hit is reported, and the prompt computed all the same
    reload_corrupts: bool = False  # output changes after a copy from the CPU tier
    accept_collapse_after_reload: bool = False  # no drafted token is accepted after such a copy
    never_pauses: bool = False  # every request reserves all that it may generate, so none has to pause
    loses_paused: bool = False  # a paused request never resumes and ends as aborted
    shortens_paused: bool = False  # a resumed request ends halfway through what was left of it
    resume_corrupts: bool = False  # output changes after a resume
    pool_leak: bool = False  # the first finished request keeps one hash page in use for ever
    cut: bool = False  # max_new_tokens is halved, silently
