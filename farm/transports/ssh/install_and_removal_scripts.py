"""Shell scripts for a board's service, and the script that removes farm from a board.

They follow the rules in farm/transports/board_scripts.py.
"""

from __future__ import annotations

_SYSTEMD = """
export XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-/run/user/$(id -u)}
me=$(id -un)
if test "$(id -u)" = 0; then
  scope=--system units=/etc/systemd/system
else
  case ${XDG_CONFIG_HOME-} in /*) config=$XDG_CONFIG_HOME;; *) config=$HOME/.config;; esac
  scope=--user units=$config/systemd/user
fi
unit=$units/farm-agent.service
control() { systemctl "$scope" "$@"; }
"""

# Test whether a systemd can be used. A user's systemd runs without a login only if the user
# lingers.
MANAGER = f"""{_SYSTEMD}
command -v systemctl >/dev/null || {{ tell absent "there is no systemctl"; exit 0; }}
test -d /run/systemd/system || {{ tell absent "it was started by another init"; exit 0; }}
test $scope = --system && exit 0
if test "$(loginctl show-user "$me" -p Linger --value 2>/dev/null)" = yes || test -e "/var/lib/systemd/linger/$me"; then :; else
  why=$(loginctl enable-linger 2>&1) || {{ tell absent "its user may not linger: $why"; exit 0; }}
  mkdir -p "$service" && : >"$service/lingers"
fi
left=50
until why=$(control show --property Version 2>&1); do
  test $((left -= 1)) -gt 0 || {{ tell absent "the systemd of the user does not answer: $why"; exit 0; }}
  sleep 0.1
done
systemd-run --user --quiet --wait -p ProtectSystem=strict -p PrivateTmp=yes true >/dev/null 2>&1 && tell walls yes
exit 0
"""  # noqa: E501

# Standard input is the line with the key. Write the agent's link, the key and the unit, each only
# if it has changed; restart the service if any has changed or if it does not run.
INSTALL = f"""{_SYSTEMD}
digest=$1 text=$2 how=$3 tracker=$4 changed=no
read -r key
mkdir -p "$service" "$units"
if test $how = random; then
  key=$(grep "^FARM_AGENT_KEY=." "$service/key" 2>/dev/null) ||
    key=FARM_AGENT_KEY=$(od -A n -v -t x1 -N 24 /dev/urandom | tr -d " \\n")
fi
part=$service/.part-$$
trap "rm -f \\"\\$part\\"" EXIT
save() {{
  printf "%s\\n" "$1" >"$part"
  cmp -s "$part" "$2" 2>/dev/null && {{ rm -f "$part"; return; }}
  changed=yes
  mv -f "$part" "$2"
}}
if cmp -s "$agents/$digest/farm-agent" "$service/farm-agent" 2>/dev/null; then :; else
  changed=yes
  ln -f "$agents/$digest/farm-agent" "$part" 2>/dev/null || cp "$agents/$digest/farm-agent" "$part"
  mv -f "$part" "$service/farm-agent"
fi
save "$key" "$service/key"
save "$text" "$unit"
chmod 644 "$unit"
control is-active --quiet farm-agent || changed=yes
if test $changed = yes; then
  rm -f "$service/port"
  control daemon-reload 2>&1
  why=$(control enable farm-agent 2>&1 && control restart farm-agent 2>&1) || {{ tell failed "$why"; exit 0; }}
else
  control enable --quiet farm-agent 2>&1
fi
tell changed $changed
log() {{ control status --no-pager --full --lines 20 farm-agent 2>&1; }}
left=50
is_over() {{ test "$(control show --property SubState farm-agent)" = SubState=auto-restart; }}
until test -s "$service/port" || is_over || test $((left -= 1)) -le 0; do sleep 0.1; done
test -s "$service/port" && control is-active --quiet farm-agent || {{
  state=$(control show --property SubState,Result,ExecMainStatus farm-agent 2>&1)
  tell failed "$(echo "$state" "$(log | sed "1,/^$/d" | tail -n 4)" | tr "\\n" " ")"
  exit 0
}}
tell listens "$(cat "$service/port")"
left=20
while test -n "$tracker" && test $((left -= 1)) -gt 0; do
  line=$(log | grep -o -e "registered with tracker.*" -e "tracker .*trying again.*" | tail -n 1)
  test -n "$line" && {{ tell tracker "$line"; exit 0; }}
  sleep 0.1
done
exit 0
"""  # noqa: E501

# Standard input are lines of known_hosts for the lab's server. Make the key, once, and the unit.
TUNNEL = f"""{_SYSTEMD}
text=$1 comment=$2 unit=$units/farm-tunnel.service
command -v ssh >/dev/null && command -v ssh-keygen >/dev/null || {{ tell absent "it has no ssh and ssh-keygen"; exit 0; }}
umask 077
mkdir -p "$service" "$units"
cat >"$service/lab_hosts"
test -s "$service/lab_key" || ssh-keygen -q -t ed25519 -N "" -C "$comment" -f "$service/lab_key" || {{ tell failed "ssh-keygen failed"; exit 0; }}
printf "%s\n" "$text" >"$unit"
chmod 644 "$unit"
control daemon-reload 2>&1
why=$(control enable farm-tunnel 2>&1 && control restart farm-tunnel 2>&1) || {{ tell failed "$why"; exit 0; }}
tell key "$(cat "$service/lab_key.pub")"
exit 0
"""  # noqa: E501

# Remove only farm's own files: a folder that an option names may contain others.
REMOVE = f"""{_SYSTEMD}
tunnel=$units/farm-tunnel.service
if test -e "$tunnel"; then
  why=$(control disable --now farm-tunnel 2>&1) || {{ tell stuck "$tunnel: $why"; exit 0; }}
  rm -f "$tunnel"
  control daemon-reload >/dev/null 2>&1
  tell tunnel "$tunnel"
fi
if test -e "$unit"; then
  why=$(control disable --now farm-agent 2>&1) || {{ tell stuck "$unit: $why"; exit 0; }}
  rm -f "$unit"
  control daemon-reload >/dev/null 2>&1
  tell unit "$unit"
fi
test -e "$service/lingers" && loginctl disable-linger >/dev/null 2>&1
running=
for one in /proc/[0-9]*; do has_agent "$one" "$agents" && running="$running ${{one#/proc/}}"; done
if test -n "$running"; then
  kill $running 2>/dev/null
  sleep 0.5
  kill -KILL $running 2>/dev/null
  tell running "$running"
fi
digests() {{ ls "$store" 2>/dev/null | grep -E "^[0-9a-f]{{64}}(\\.part)?$"; }}
tell deployments "$(ls "$store/models" 2>/dev/null | tr "\\n" " ")"
count=$(digests | wc -l)
size=$(cd "$store" 2>/dev/null && digests | xargs du -ck | tail -n 1 | cut -f 1)
test $count -eq 0 || tell files "$(echo $count) kept files, $size KiB"
count=$(ls "$agents" 2>/dev/null | wc -l)
test $count -eq 0 || tell agents "$(echo $count)"
digests | while read -r name; do rm -f "$store/$name"; done
rm -rf "$store/models" "$store/.lock" "$store/.run" "$agents" "$service" "$wrapper" "$base"/.part-* 2>/dev/null
rm -rf "$work"/farm-session-* "$work/.lock" 2>/dev/null
rmdir "$store" "$work" "$base" 2>/dev/null
for one in "$store/models" "$agents" "$service" "$wrapper"; do test -e "$one" && tell stuck "$one"; done
digests | while read -r name; do tell stuck "$store/$name"; break; done
test -d "$base" && tell left "$(ls -A "$base" | tr "\\n" " ")"
tell done yes
exit 0
"""  # noqa: E501
