#include "agent.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/ioctl.h>
#include <unistd.h>

bool terminal_resize(int master, uint16_t rows, uint16_t cols) {
    struct winsize size = {.ws_row = rows, .ws_col = cols};
    return ioctl(master, TIOCSWINSZ, &size) == 0;
}

bool terminal_tells_resize(int master) {
    pid_t foreground;
    return ioctl(master, TIOCGPGRP, &foreground) == 0;
}

int terminal_open(const struct identity *identity, uint16_t rows, uint16_t cols, int *slave) {
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (master < 0) return -1;
    int unlocked = 0;
    unsigned number = 0;
    char path[32];
    *slave = -1;
    if (ioctl(master, TIOCSPTLCK, &unlocked) == 0 && ioctl(master, TIOCGPTN, &number) == 0) {
        snprintf(path, sizeof path, "/dev/pts/%u", number);
        *slave = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
    }
    if (*slave < 0) {
        close(master);
        return -1;
    }
    /* So that the user may open /dev/tty by its name; where the file system refuses, the open descriptors still serve. */
    if (fchown(*slave, identity->uid, identity->gid) == 0) fchmod(*slave, 0620);
    terminal_resize(master, rows, cols);
    return master;
}
