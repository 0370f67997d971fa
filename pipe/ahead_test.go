package pipe_test

import (
	"context"
	"errors"
	"testing"

	"penstock.example/group"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// A stage has room for what other processes will send before it does anything, for all micro-batches
// where values are small: so no value waits for the network to say that it may leave. Where a plan
// counts what a device holds, values have room from their receive on.
func TestRoomAheadOfReceives(t *testing.T) {
	torchtest.Check(t)
	const rows, chunks, width = 12, 4, 16
	const values = rows * width * 4 // bytes, of all micro-batches together
	q := problem{model: func() *nn.Sequential { return nn.NewSequential(nn.NewLinear(8, width), nn.NewLinear(width, 3)) },
		loss: nn.CrossEntropy(), input: normal(rows, 8), target: classes(rows, 3)}
	for _, row := range []struct {
		name   string
		budget []int64
		want   int64
	}{{"policy never", nil, values}, {"planned", []int64{1 << 30, 1 << 30}, 0}} {
		ahead, errs := each(2, func(g *group.Group) (ahead int64, err error) {
			cfg := pipe.Config{Balance: []int{1, 1}, Chunks: chunks, Devices: []torch.Device{torch.CPU(0), torch.CPU(1)}, Budget: row.budget}
			if row.budget != nil {
				cfg.Checkpoint = pipe.Optimal
			}
			err = q.on(g, cfg, func(m process) error {
				d := torch.CPU(g.Rank())
				for step := range 2 { // sizes are known in the second one
					before, first := d.Memory().Live, true
					m.Hold(func(int, int) {
						if first {
							ahead, first = d.Memory().Live-before, false
						}
					})
					if err := m.train(context.Background(), step); err != nil {
						return err
					}
				}
				return nil
			})
			return ahead, err
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		for rank, got := range ahead {
			if got != row.want {
				t.Errorf("%s: process %d has taken %d bytes before its first action; want %d", row.name, rank, got, row.want)
			}
		}
	}
}
