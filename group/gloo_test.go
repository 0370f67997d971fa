package group

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"
)

// TestWhoIsToBlameWhileJoining: where connections for tensors cannot be opened, another member may have been lost, of which
// the others hear a moment later. They blamed themselves.
func TestWhoIsToBlameWhileJoining(t *testing.T) {
	open := func(c *control) error {
		c.board.Close() // so that Gloo fails at once
		_, err := openCarrier(context.Background(), c, net.IPv4(127, 0, 0, 1))
		return err
	}
	c, lost := newControl(Config{Size: 3, Rank: 1}.filled()), &LostError{Rank: 2, Why: "it died"}
	time.AfterFunc(20*time.Millisecond, func() { c.first.set(lost, nil) })
	if err := open(c); !errors.Is(err, lost) {
		t.Errorf("got %v; want %v", err, lost)
	}
	if err := open(newControl(Config{Size: 3, Rank: 1}.filled())); err == nil || errors.Is(err, lost) {
		t.Errorf("where nobody is lost: %v; want that of Gloo", err)
	}
}
