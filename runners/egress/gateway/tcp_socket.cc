#include "runners/egress/gateway/tcp_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace dsec::egress {

void keep_alive(int socket) {
  const int on = 1, idle = 60, interval = 20, count = 4;
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(socket, SOL_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  ::setsockopt(socket, SOL_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  ::setsockopt(socket, SOL_TCP, TCP_KEEPCNT, &count, sizeof count);
  ::setsockopt(socket, SOL_TCP, TCP_NODELAY, &on, sizeof on);
}

void end_by_reset(int socket, bool on) {
  const linger how = {on, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_LINGER, &how, sizeof how);
}

}  // namespace dsec::egress
