"""The story of deploy and bench (`story`), the commands that do one thing (`single`), and what the lanes are given to do (`tasks`)."""

from farm.pipeline.single import agent_for, ask, compile_model, infer, infer_deployed
from farm.pipeline.story import Ledger, Outcome, execute, expand

__all__ = ["Ledger", "Outcome", "agent_for", "ask", "compile_model", "execute", "expand", "infer", "infer_deployed"]
