"""Continuous control: learn a model of the world, calibrate it, and plan with it."""

from typing import TYPE_CHECKING

from calibrl.lazy import exports

if TYPE_CHECKING:
    from calibrl.control.agent import Agent as Agent
    from calibrl.control.policy import Fleet as Fleet
    from calibrl.control.problems import Task as Task
    from calibrl.control.problems import task as task
    from calibrl.control.problems import task_from_env as task_from_env
    from calibrl.control.settings import TASKS as TASKS

__getattr__, __dir__, __all__ = exports(__name__)
