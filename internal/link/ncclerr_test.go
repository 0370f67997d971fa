package link

import (
	"errors"
	"testing"
	"time"
)

// Who asks for errors of communicators while they are closed waits for nothing: it is who would call Abort,
// which alone may end Close.
func TestNCCLErrWhileItCloses(t *testing.T) {
	n := &NCCL{}
	n.mu.Lock() // as Close does until moves are done
	defer n.mu.Unlock()
	for _, row := range []struct {
		stop int32
		want error
	}{{0, nil}, {1, ErrNCCLClosed}} {
		n.stop.Store(row.stop)
		got := make(chan error, 1)
		go func() { got <- n.Err() }()
		select {
		case err := <-got:
			if !errors.Is(err, row.want) {
				t.Errorf("with stop %d: %v; want %v", row.stop, err, row.want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("with stop %d it waits for Close", row.stop)
		}
	}
}
