package link_test

import (
	"slices"
	"testing"

	"penstock.example/internal/link"
	"penstock.example/internal/torchtest"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// slow is a transport on which nothing arrives before somebody waits for it.
type slow struct{ works []*slowWork }

type slowWork struct{ waited bool }

func (w *slowWork) Wait() error { w.waited = true; return nil }

func (s *slow) Send(*torch.Tensor, int, int) (link.Work, error) {
	w := &slowWork{}
	s.works = append(s.works, w)
	return w, nil
}

func (s *slow) Receive(*torch.Tensor, int, int) (link.Work, error) { panic("nobody receives") }

// A send waits for that which is as many sends before it as values may wait, and where none may, for
// itself. Links of skips hold any number.
func TestCapacityOfRemote(t *testing.T) {
	for _, row := range []struct {
		name     string
		capacity int
		peer     int
		want     []int // after each of four sends, how many were waited for
		live     int   // tensors of parcels that are still there after them
	}{
		{"any number", 0, 1, []int{0, 0, 0, 0}, 4},
		{"none", schedule.Meet, 1, []int{1, 2, 3, 4}, 0},
		{"one", 1, 1, []int{0, 1, 2, 3}, 1},
		{"two", 2, 1, []int{0, 0, 1, 2}, 2},
		{"a skip", 1, 2, []int{0, 0, 0, 0}, 4},
		{"a skip where none may wait", schedule.Meet, 2, []int{0, 0, 0, 0}, 4},
	} {
		t.Run(row.name, func(t *testing.T) {
			torchtest.Check(t)
			c := torch.NewCtx(torch.Options{})
			defer c.Close()
			transport := &slow{}
			remote, err := link.NewRemote(transport, []int{0, 1, 2}, 4, link.Tags{Count: 1 << 20})
			if err != nil {
				t.Fatal(err)
			}
			l := remote.Open(row.capacity)
			defer l.Free()
			var got []int
			var sent []*torch.Tensor
			const messages = 3 // of each parcel: head, layout, tensor
			for i := range 4 {
				var p link.Parcel
				x := c.Keep(c.Ones(torch.Float32, 2))
				sent = append(sent, x)
				p.Add(link.Values(x))
				if err := l.Send(c, schedule.Action{Kind: schedule.SendActivation, MicroBatch: i, Peer: row.peer}, p); err != nil {
					t.Fatal(err)
				}
				waited := 0
				for k := 0; k < len(transport.works); k += messages {
					if !slices.ContainsFunc(transport.works[k:k+messages], func(w *slowWork) bool { return !w.waited }) {
						waited++
					}
				}
				got = append(got, waited)
			}
			live := 0
			for _, x := range sent {
				if !x.Freed() {
					live++
				}
			}
			if !slices.Equal(got, row.want) || live != row.live {
				t.Errorf("waited for %v sends and kept %d tensors, want %v and %d", got, live, row.want, row.live)
			}
		})
	}
}
