"""Continuous control: learn a model of the world, calibrate it, and plan with it."""

from calibrl.control.agent import Agent
from calibrl.control.fleet import Fleet
from calibrl.control.tasks import TASKS, Task, task, task_from_env

__all__ = [
    "TASKS",
    "Agent",
    "Fleet",
    "Task",
    "task",
    "task_from_env",
]
