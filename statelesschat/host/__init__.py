"""Everything with a side effect: sessions, tools and graders, and the one bridge that reaches them from the device."""

from statelesschat.host.checking import HostError as HostError
from statelesschat.host.checking import check as check
from statelesschat.host.checking import faults as faults
from statelesschat.host.desk import Answer as Answer
from statelesschat.host.desk import Verdict as Verdict
from statelesschat.host.environment import show_reply as show_reply
from statelesschat.host.environment import with_host as with_host
from statelesschat.host.environment import with_session as with_session
from statelesschat.host.interpreter import python_interpreter as python_interpreter
from statelesschat.host.interpreter import shell_tool as shell_tool
from statelesschat.host.registry import Registry as Registry
from statelesschat.host.registry import Ticket as Ticket
from statelesschat.host.sandbox import IsolationError as IsolationError
from statelesschat.host.sandbox import Limits as Limits
from statelesschat.host.session import Outcome as Outcome
from statelesschat.host.session import Part as Part
from statelesschat.host.session import Reply as Reply
from statelesschat.host.session import Row as Row
from statelesschat.host.session import Score as Score
from statelesschat.host.session import Session as Session
from statelesschat.host.session import SessionSpec as SessionSpec
from statelesschat.host.shell import ShellSession as ShellSession
from statelesschat.host.tool import Result as Result
from statelesschat.host.tool import Tool as Tool
from statelesschat.host.tool import as_tool as as_tool
from statelesschat.host.tools import with_tool as with_tool
