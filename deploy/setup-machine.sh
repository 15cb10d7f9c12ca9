#!/bin/sh
# Installs what Atoll needs from the system's own packages: once, idempotent, and quiet when nothing is missing.
#
#   sh deploy/setup-machine.sh            what a server needs
#   sh deploy/setup-machine.sh --test     also what the tests need
#
# For Debian 12 and later, as root. Without root it prints the commands to run instead and ends with 1. Debian 12's own
# runsc is too old, so its backports suite is added, from the mirror that the machine's APT sources already name.
# `--backports-source DIR CODENAME` only prints the source file that would be written, read from DIR instead of /etc/apt.
set -eu

OLDEST_RUNSC=20230801 # the first releases with the systrap platform are of that summer
PATH="$PATH:/usr/sbin:/sbin"
APT_DIR=/etc/apt
BACKPORTS_FILE=/etc/apt/sources.list.d/atoll-backports

say() { printf '%s\n' "setup: $*"; }
has() { command -v "$1" >/dev/null 2>&1; }

# --- what is missing -----------------------------------------------------------------------------------------------

missing=
# need PACKAGE CONDITION…: the package is missing unless the condition holds
need() {
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}
any_file() {
    for file in "$@"; do
        [ -e "$file" ] && return 0
    done
    return 1
}

# The release date in a version of runsc, or nothing.
release_date() { sed -n 's/.*\(20[0-9][0-9][0-9][0-9][0-9][0-9]\)\.[0-9].*/\1/p' | head -n 1; }
recent_enough() { [ -n "$1" ] && [ "$1" -ge "$OLDEST_RUNSC" ]; }
runsc_works() {
    has runsc || return 1
    found=$(runsc --version 2>/dev/null | release_date)
    # Without a date it is a build of the operator's own: theirs to judge, and `atoll doctor` boots it.
    [ -z "$found" ] || recent_enough "$found"
}

find_missing() {
    missing=
    need skopeo has skopeo
    need umoci has umoci
    need mmdebstrap has mmdebstrap
    need nftables has nft
    need iproute2 has ip
    need mount has mount
    need gcc has gcc
    need libc6-dev any_file /usr/include/stdio.h
    need make has make
    need python3-venv python3 -c 'import ensurepip'
    need zstd has zstd
    need fuse3 has fusermount3
    need ca-certificates any_file /etc/ssl/certs/ca-certificates.crt
    if [ "$1" = test ]; then
        need docker-registry has docker-registry
        need bubblewrap has bwrap
        need postgresql any_file /usr/lib/postgresql/*/bin/postgres
        need clang any_clang
        need libclang-rt-dev any_file /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a \
            /usr/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a
    fi
}
any_clang() { has clang || any_file /usr/bin/clang-[0-9]*; }

# --- the backports suite -------------------------------------------------------------------------------------------

# deb822 (.sources): the first stanza that is Debian's own archive of the release, with the suite replaced. Keys written
# into the stanza, options and several mirrors stay as they are.
backports_stanza() {
    awk -v codename="$2" '
        function flush(    i, own) {
            own = signed == "" || signed ~ /debian/ || signed ~ /BEGIN PGP/
            if (!done && types ~ / deb / && enabled !~ /no/ && suites ~ (" " codename " ") && components ~ / main / && own) {
                for (i = 1; i <= count; i++) print kept[i]
                print "Types: deb"
                print "Suites: " codename "-backports"
                print "Components: main"
                done = 1
            }
            types = suites = components = signed = enabled = field = ""
            count = 0
        }
        /^#/ { next }
        /^[ \t]*$/ { flush(); next }
        {
            value = $0
            if ($0 !~ /^[ \t]/) {
                field = tolower($0)
                sub(/[ \t]*:.*/, "", field)
                sub(/^[^:]*:/, "", value)
            }
            gsub(/[ \t]+/, " ", value)
            value = " " value " "
            if (field == "types") types = types value
            else if (field == "suites") suites = suites value
            else if (field == "components") components = components value
            else {
                if (field == "signed-by") signed = signed value
                if (field == "enabled") enabled = enabled tolower(value)
                kept[++count] = $0
            }
        }
        END { flush() }
    ' "$1"
}

# One line (.list): the first such line, with the suite replaced.
backports_line() {
    awk -v codename="$2" '
        {
            sub(/#.*/, "")
            options = ""
            rest = $0
            if (rest !~ /^[ \t]*deb[ \t]/) next
            sub(/^[ \t]*deb[ \t]+/, "", rest)
            if (rest ~ /^\[/) {
                options = substr(rest, 1, index(rest, "]")) " "
                rest = substr(rest, index(rest, "]") + 1)
            }
            count = split(rest, part, /[ \t]+/)
            first = part[1] == "" ? 2 : 1
            main = 0
            for (i = first + 2; i <= count; i++) if (part[i] == "main") main = 1
            own = options !~ /signed-by=/ || options ~ /signed-by=[^ ]*debian/
            if (part[first + 1] == codename && main && own) {
                print "deb " options part[first] " " codename "-backports main"
                exit
            }
        }
    ' "$1"
}

# Sets `backports` to the text of a source file and `backports_kind` to its suffix; both empty when no source fits.
find_backports() {
    backports= backports_kind=
    for file in "$1/sources.list" "$1"/sources.list.d/*.list "$1"/sources.list.d/*.sources; do
        [ -f "$file" ] || continue
        case $file in
            *.sources) backports_kind=sources backports=$(backports_stanza "$file" "$2") ;;
            *) backports_kind=list backports=$(backports_line "$file" "$2") ;;
        esac
        [ -z "$backports" ] || return 0
    done
    backports_kind=
}

# --- installing ----------------------------------------------------------------------------------------------------

codename() { (. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}"); }
candidate_date() { apt-cache policy runsc 2>/dev/null | sed -n 's/^ *Candidate: //p' | release_date; }
backports_date() { apt-cache madison runsc 2>/dev/null | grep -e "$(codename)-backports" | release_date; }
install() {
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=300 "$@" >&2
}

install_runsc() {
    if recent_enough "$(candidate_date)"; then
        say "installing runsc"
        install runsc
        return
    fi
    suite="$(codename)-backports"
    if ! recent_enough "$(backports_date)"; then
        find_backports "$APT_DIR" "$(codename)"
        if [ -z "$backports" ]; then
            say "APT has no runsc that is recent enough, and no source of Debian's own to find $suite next to." >&2
            say "Install runsc (gVisor) of $OLDEST_RUNSC or later, and run this again." >&2
            exit 1
        fi
        say "adding $suite from this machine's own mirror ($BACKPORTS_FILE.$backports_kind)"
        printf '%s\n' "$backports" >"$BACKPORTS_FILE.$backports_kind"
        apt-get update -q >&2
    fi
    say "installing runsc from $suite"
    install -t "$suite" runsc
}

# Packages for the tests bring servers that the tests start by themselves: keep APT from starting them.
without_services() {
    if [ -e /usr/sbin/policy-rc.d ]; then
        "$@"
        return
    fi
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    trap 'exit 130' INT TERM
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
    "$@"
    rm -f /usr/sbin/policy-rc.d
}

print_commands() {
    say "this needs root. Run as root:"
    if [ -n "$runsc_missing" ]; then
        find_backports "$APT_DIR" "$(codename)"
    else
        backports=
    fi
    if [ -n "$backports" ] && ! recent_enough "$(candidate_date)"; then
        printf "  cat >%s <<'END'\n%s\nEND\n" "$BACKPORTS_FILE.$backports_kind" "$backports"
        target="-t $(codename)-backports "
    else
        target=
    fi
    printf '  apt-get update\n'
    [ -z "$missing" ] || printf '  apt-get install -y --no-install-recommends%s\n' "$missing"
    [ -z "$runsc_missing" ] || printf '  apt-get install -y --no-install-recommends %srunsc\n' "$target"
}

# --- main ----------------------------------------------------------------------------------------------------------

purpose=server
case ${1:-} in
    '') ;;
    --test) purpose=test ;;
    --backports-source)
        find_backports "$2" "$3"
        [ -n "$backports" ] || exit 1
        printf '%s\n' "$backports"
        exit 0
        ;;
    *)
        say "unknown argument: $1" >&2
        exit 2
        ;;
esac

find_missing "$purpose"
runsc_missing=
runsc_works || runsc_missing=yes
[ -n "$missing$runsc_missing" ] || exit 0

if ! has apt-get; then
    say "this machine has no APT. Install by other means:$missing${runsc_missing:+ runsc}" >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    print_commands >&2
    exit 1
fi

say "missing:$missing${runsc_missing:+ runsc}; asking APT for its lists"
apt-get update -q >&2
if [ -n "$missing" ]; then
    say "installing$missing"
    # shellcheck disable=SC2086 # a list of words
    without_services install $missing
fi
[ -z "$runsc_missing" ] || install_runsc

find_missing "$purpose"
runsc_works || missing="$missing runsc"
if [ -n "$missing" ]; then
    say "still missing after the installation:$missing" >&2
    exit 1
fi
say "done"
