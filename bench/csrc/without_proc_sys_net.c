/* Executes its arguments with an empty /proc/sys/net, as the shim does where runsc needs it (see the driver's probe). */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc < 2 || unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", "/proc/sys/net", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=0")) {
        perror("without_proc_sys_net");
        return 127;
    }
    execvp(argv[1], argv + 1);
    perror(argv[1]);
    return 127;
}
