"""Everything with a side effect: sessions, tools and graders, and the one bridge that reaches them from the device."""

from statelesschat.host.environment import show_reply as show_reply
from statelesschat.host.environment import with_host as with_host
from statelesschat.host.environment import with_session as with_session
from statelesschat.host.registry import Registry as Registry
from statelesschat.host.registry import Ticket as Ticket
from statelesschat.host.sandbox import IsolationError as IsolationError
from statelesschat.host.sandbox import Limits as Limits
from statelesschat.host.session import Outcome as Outcome
from statelesschat.host.session import Part as Part
from statelesschat.host.session import Reply as Reply
from statelesschat.host.session import Score as Score
from statelesschat.host.session import Session as Session
from statelesschat.host.session import SessionSpec as SessionSpec
from statelesschat.host.shell import ShellSession as ShellSession
