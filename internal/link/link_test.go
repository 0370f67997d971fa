package link_test

import (
	"strings"
	"testing"

	"penstock.example/internal/link"
	"penstock.example/internal/torchtest"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// A parcel is handed over as it was sent, list by list.
func TestMemory(t *testing.T) {
	torchtest.Check(t)
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x, y := c.Keep(c.Ones(torch.Float32, 2)), c.Keep(c.Ones(torch.Float32, 3))
	var l link.Memory
	sent := link.Parcel{Device: torch.CPU(1)}
	sent.Add([]link.Value{{Tensor: x, Wants: true}, {}})
	sent.Add(nil)
	sent.Add(link.Values(y))
	send := schedule.Action{Kind: schedule.SendActivation, Stage: 0, MicroBatch: 2, Peer: 1}
	if err := l.Send(c, send, sent); err != nil {
		t.Fatal(err)
	}
	got, err := l.Receive(c, send)
	if err != nil {
		t.Fatal(err)
	}
	if list := got.Take(); got.Device != torch.CPU(1) || len(list) != 2 || list[0] != (link.Value{Tensor: x, Wants: true}) ||
		list[1] != (link.Value{}) {
		t.Errorf("the first list is %v from %v", list, got.Device)
	}
	if list := got.Take(); len(list) != 0 {
		t.Errorf("the second list is %v, want an empty one", list)
	}
	got.Free()
	if !y.Freed() || x.Freed() {
		t.Errorf("a parcel frees what was not taken: %v, and what was taken: %v", y.Freed(), x.Freed())
	}
	x.Free()
	if _, err := l.Receive(c, send); err == nil || !strings.Contains(err.Error(), "0F2>1 was not sent") {
		t.Errorf("a second receive: %v", err)
	}
}

// What waits on a link is freed with it.
func TestFreeOfWhatWaits(t *testing.T) {
	torchtest.Check(t)
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	var l link.Memory
	var p link.Parcel
	p.Add(link.Values(c.Keep(c.Ones(torch.Float32, 2)), nil))
	if err := l.Send(c, schedule.Action{Kind: schedule.SendGradient, Stage: 1}, p); err != nil {
		t.Fatal(err)
	}
	l.Free()
	l.Free()
}
