package launch

import (
	"cmp"
	"fmt"
	"syscall"
)

// Port is a port of the loopback interface that is kept for a process that will listen there. It is bound
// without a listener, so the system does not give it to processes that ask for any port. With SO_REUSEADDR a
// process that names the port may listen there.
type Port struct {
	Number int
	socket int
}

// KeepPort keeps a free port. The caller releases it.
func KeepPort() (*Port, error) {
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("launch: keeping a port: %w", err)
	}
	reuse := syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	bound := syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	at, err := syscall.Getsockname(socket)
	if err = cmp.Or(reuse, bound, err); err != nil {
		_ = syscall.Close(socket)
		return nil, fmt.Errorf("launch: keeping a port: %w", err)
	}
	return &Port{at.(*syscall.SockaddrInet4).Port, socket}, nil
}

// Release gives up the port. A process that listens there goes on.
func (p *Port) Release() error { return syscall.Close(p.socket) }
