// Standard streams that were closed when the process began. Go opens /dev/null in their place before any of its own code runs, so that only what runs before Go can tell.
#include <cerrno>
#include <fcntl.h>

#include "../shim.h"

namespace {

bool closed_at_start[3];

__attribute__((constructor)) void look() {
  for (int fd = 0; fd < 3; fd++) closed_at_start[fd] = fcntl(fd, F_GETFD) < 0 && errno == EBADF;
}

}  // namespace

int32_t ps_closed_at_start(int32_t fd) { return fd >= 0 && fd < 3 && closed_at_start[fd]; }
