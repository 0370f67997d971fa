package group

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"penstock.example/internal/launch"
	"penstock.example/torch"
)

// TestWhoIsToBlameWhileJoining: where connections for tensors cannot be opened, another member may have been lost, of which
// the others hear a moment later. They blamed themselves.
func TestWhoIsToBlameWhileJoining(t *testing.T) {
	port, err := launch.KeepPort(0)
	if err != nil {
		t.Fatal(err)
	}
	defer port.Release()
	opened, err := torch.OpenStore("127.0.0.1", port.Number, true, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	opened.Close() // so that Gloo fails at once
	c, lost := newControl(Config{Size: 3}.filled()), &LostError{Rank: 2, Why: "it died"}
	time.AfterFunc(20*time.Millisecond, func() { c.end(lost, nil) })
	if _, err := openCarrier(context.Background(), c, &store{Store: opened}, net.IPv4(127, 0, 0, 1)); !errors.Is(err, lost) {
		t.Errorf("got %v; want %v", err, lost)
	}
	if _, err := openCarrier(context.Background(), newControl(Config{Size: 3}.filled()), &store{Store: opened}, net.IPv4(127, 0, 0, 1)); err == nil || errors.Is(err, lost) {
		t.Errorf("where nobody is lost: %v; want that of Gloo", err)
	}
}
