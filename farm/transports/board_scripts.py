"""Shell scripts that run on a board; each reports its results as lines `farm:NAME=VALUE`.

They need sh and the file tools of every Linux. Each script is passed to the user's shell, whichever
it is, as one quoted word: it contains no single quotes, no exclamation marks, no two backslashes in
a row. Its first two arguments are the device's options `store` and `work_dir`, empty if not set;
the script's first line names the others.
"""

from __future__ import annotations

_MOST_DIGITS = 18


def parse_report(text: str) -> dict[str, str]:
    """Return the values that a script printed, by name, and all of its output under ""."""
    told = (line[5:].partition("=") for line in text.splitlines() if line.startswith("farm:"))
    return {"": text, **{name: value for name, _, value in told}}


def parse_whole_number(text: str) -> int | None:
    """Return the number in a text that a board reported; None for anything else, however odd."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


HEAD = """
export LC_ALL=C; umask 077
tell() { echo "farm:$1=$2"; }
at_home() { case $1 in "~/"*) echo "$HOME/${1#??}";; /*) echo "$1";; *) echo "$HOME/$1";; esac; }
case ${XDG_DATA_HOME-} in /*) base=$XDG_DATA_HOME/farm;; *) base=$HOME/.local/share/farm;; esac
store=$base/store work=$base/work
test -z "$1" || { base=$(at_home "$1"); store=$base; }
test -z "$2" || work=$(at_home "$2")
shift 2
agents=$base/agents service=$base/service wrapper=$base/farm-agent
# The first bytes of the shell, in hexadecimal; Android has it elsewhere.
shell_header() {
  for one in /bin/sh /system/bin/sh; do
    test -e "$one" && { od -A n -v -t x1 -N 52 "$one" 2>/dev/null | tr -d " \\n"; return; }
  done
}
# Whether a process has one of our agents, of those in the folder $2, in its command line.
has_agent() { case $(tr "\\000" "\\n" 2>/dev/null <"$1/cmdline") in *"$2/"*farm-agent*) return 0;; esac; return 1; }
"""  # noqa: E501

# Report what the board is, where farm's folders are and whether they can be used, and the size of
# the agent if the board has it.
LOOK = """
digest=$1 agent=$agents/$1/farm-agent
libc() {
  case $(getconf GNU_LIBC_VERSION 2>/dev/null) in glibc*) getconf GNU_LIBC_VERSION; return;; esac
  for loader in /lib/ld-musl-*; do
    test -e "$loader" && { echo "musl $("$loader" 2>&1 | sed -n "s/^Version //p")"; return; }
  done
  test -e /system/bin/linker && echo bionic
}
tell machine "$(uname -m)"; tell bits "$(getconf LONG_BIT 2>/dev/null)"; tell libc "$(libc)"
tell shell "$(shell_header)"
tell user "$(id -u)"; tell base "$base"; tell store "$store"; tell work "$work"; tell agent "$agent"
there=no
test -x "$agent" && there=yes && touch -c "${agent%/*}" 2>/dev/null
for folder in "$store" "$work" "$agents"; do
  why=$(mkdir -p "$folder" 2>&1) || { tell refused "$why"; exit 0; }
  probe=$folder/.part-$$
  why=$( (: >"$probe") 2>&1) || { rm -f "$probe"; tell refused "$why"; exit 0; }
  if test "$there$folder" = "no$agents"; then
    why=$(echo "#" | cat 2>&1 >"$probe") || { rm -f "$probe"; tell refused "$why"; exit 0; }
    chmod 700 "$probe"
    why=$("$probe" 2>&1) || tell noexec "$why"
  fi
  rm -f "$probe"
done
tell free_kib "$(df -Pk "$agents" | tail -n 1 | { read -r _ _ _ free _; echo "$free"; })"
test $there = yes && tell size "$(wc -c <"$agent")"
exit 0
"""

# Standard input is the agent, which is installed whole or not at all. Then remove agents of other
# versions that were not used for a day.
PUT = """
size=$1 digest=$2; shift 2
folder=$agents/$digest
agent=$folder/farm-agent part=$folder/.part-$$
mkdir -p "$folder"
find "$folder" -name ".part-*" -mmin +60 -exec rm -f {} + 2>/dev/null
trap "rm -f \\"\\$part\\"" EXIT
trap "exit 1" HUP INT TERM
trap "" PIPE
why=$(cat 2>&1 >"$part") || { tell full "$why"; exit 0; }
arrived=$(wc -c <"$part")
test "$arrived" -eq "$size" || { tell broken "$(echo $arrived) of $size bytes arrived"; exit 0; }
if sum=$(sha256sum <"$part" 2>/dev/null); then
  test "${sum%% *}" = "$digest" || { tell broken "it arrived with another digest"; exit 0; }
fi
chmod 700 "$part"
why=$("$@" "$part" --version 2>&1) || { tell refused "$? $why"; exit 0; }
mv -f "$part" "$agent" && tell placed "$why"
is_running() { for one in /proc/[0-9]*; do has_agent "$one" "$1" && return; done; return 1; }
find "$agents" -mindepth 1 -maxdepth 1 -type d -mtime +0 2>/dev/null | while read -r other; do
  test "$other" = "$folder" || is_running "$other" || rm -rf "$other"
done
exit 0
"""

# Report the digest of the installed agent, if the board can compute it, and its version, which
# shows that it runs.
PROVE = """
digest=$1 agent=$agents/$1/farm-agent; shift
sum=$(sha256sum <"$agent" 2>/dev/null) && tell digest "${sum%% *}"
why=$("$@" "$agent" --version 2>&1) && tell version "$why" || tell refused "$? $why"
"""

# Write the script that starts the agent on the board, if it differs: for an agent of another digest
# or another launcher.
WRAP = """
test "$(cat "$wrapper" 2>/dev/null)" = "$1" && exit 0
part=$base/.part-$$
printf "%s\\n" "$1" >"$part" && chmod 700 "$part" && mv -f "$part" "$wrapper"
"""

# Write that script, then start the agent. The agent ends when its standard input closes, which
# closes with the connection; if the connection is cut unnoticed, the agent ends after its time
# limit.
START = f"""({WRAP})
seconds=$2; shift 2
exec 3<&0 </dev/null
"$@" <&3 3<&- &
pid=$!
# Whoever ends the agents by their command lines ends this shell too; its sleep must end with it.
trap "kill $pid 2>/dev/null" TERM
exec 3<&-
trap "" PIPE  # of what the shell says of a killed agent, when nobody hears it any more
# Only SIGKILL is sure to end a sleep that is forked and has not begun: it still runs the shell,
# which handles other signals.
sleeper=$( ( sleep "$seconds" >/dev/null 2>&1 & echo $!; exec >/dev/null 2>&1; wait $! && kill $pid ) & )
wait $pid
code=$?
kill -9 $sleeper 2>/dev/null
rm -rf "$work/farm-session-$pid-"*
exit $code
"""  # noqa: E501

# Report what the board is: the architecture of its kernel and programs, its name and CPU, the kinds
# of its cores as ARM counts them, the extensions that the kernel reports, memory and GPUs.
IDENTIFY = """
tell machine "$(uname -m)"; tell bits "$(getconf LONG_BIT 2>/dev/null)"
tell shell "$(shell_header)"
words() { cat "/proc/device-tree/$1" 2>/dev/null | tr "\\000" " "; }
android=$(getprop ro.build.version.release 2>/dev/null)
board=$(words model) cpu=""
if test -n "$android"; then
  board="$(getprop ro.product.manufacturer) $(getprop ro.product.model)"
  cpu="$(getprop ro.soc.manufacturer) $(getprop ro.soc.model)"
  test "$cpu" = " " && cpu=$(getprop ro.board.platform)
fi
tell android "$android"; tell board "$board"; tell compatible "$(words compatible)"
info() { grep -m 1 -E "^$1[[:space:]]*:" /proc/cpuinfo | { IFS=: read -r _ value; echo $value; }; }
test -n "$cpu" || cpu=$(info "(model name|uarch|Hardware)")
tell cpu "$cpu"; tell features "$(info "(flags|Features|isa)")"
tell cores "$(grep -c -E "^processor[[:space:]]*:" /proc/cpuinfo)"
tell memory_kib "$(grep -m 1 "^MemTotal" /proc/meminfo | tr -c -d 0-9)"
tab=$(printf "\\t")
tell arm_cores "$(
  while IFS=:$tab read -r name value; do
    case $name in
      "CPU implementer"*) implementer=$value;;
      "CPU part"*) echo $implementer $value;;
    esac
  done </proc/cpuinfo | sort | uniq -c | tr -s "\\n" ","
)"
tell gpus "$(nvidia-smi --query-gpu=compute_cap,name --format=csv,noheader 2>/dev/null | head -n 16 | tr "\\n" ";")"
exit 0
"""  # noqa: E501
