"""Programs of users' actors: how they are written, described, executed and run."""

from ddloco.programs.program import Program as Program
from ddloco.programs.program import Role as Role
from ddloco.programs.user_actor import Array as Array
from ddloco.programs.user_actor import UserActor as UserActor
from ddloco.programs.user_actor import computation as computation
from transport import Body as Body
