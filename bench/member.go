package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"penstock.example/group"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// memberArg as first argument makes this program one of two processes that train an exercise.
const memberArg = "member"

// exercise is a workload for two processes. Its JSON is their second argument.
type exercise struct {
	Workload workload
	Schedule string
	Balance  []int
}

// order is a request to members. LR 0 drops the gradients.
type order struct{ Steps, LR float64 }

// beMember trains an exercise with another process. Rank 0 reads the orders and answers.
func beMember(ctx context.Context, text string) error {
	var x exercise
	if err := json.Unmarshal([]byte(text), &x); err != nil {
		return err
	}
	cfg, _, err := group.FromEnvironment(os.Getenv)
	if err != nil {
		return err
	}
	g, err := group.Join(ctx, cfg)
	if err != nil {
		return err
	}
	defer g.Close()
	t, err := x.trainer(g)
	if err != nil {
		return err
	}
	defer t.close()
	in, out := bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)
	for a := (answer{}); ; { // the first answer says that the member is ready
		if g.Rank() == 0 {
			if err := out.Encode(a); err != nil {
				return err
			}
		}
		o, err := group.FromFirst(ctx, g, "bench: the next order", func() (*order, error) {
			line, err := in.ReadBytes('\n')
			if errors.Is(err, io.EOF) {
				return nil, nil
			}
			o := new(order)
			return o, errors.Join(err, json.Unmarshal(line, o))
		})
		if o == nil || err != nil {
			return err
		}
		if a, err = t.follow(ctx, g, *o); err != nil {
			return err
		}
	}
}

// trainer makes the trainer of this member's stages, with a thread each.
func (x exercise) trainer(g *group.Group) (*trainer, error) {
	s, err := schedule.Named(x.Schedule)
	if err != nil {
		return nil, err
	}
	workers, err := s.Workers(g.Size(), s.Usual())
	if err != nil {
		return nil, err
	}
	config := pipe.Config{Balance: x.Balance, Schedule: s.Generate, Group: g}
	for _, on := range workers {
		config.Devices = append(config.Devices, torch.CPU(on))
	}
	return x.Workload.newTrainer(config)
}

// follow takes an order's steps. The time is from when all members begin to when all have ended.
func (t *trainer) follow(ctx context.Context, g *group.Group, o order) (a answer, err error) {
	if t.updates = nil; o.LR > 0 {
		if t.updates, err = optim.SGD(optim.Config{LR: o.LR}); err != nil {
			return a, err
		}
		defer t.updates.Close()
	}
	if _, err := group.Meet(ctx, g, "bench: the first step", 0, nil); err != nil {
		return a, err
	}
	begin := time.Now()
	for range int(o.Steps) {
		loss, err := t.step(ctx)
		if err != nil {
			return a, err
		}
		a.Losses = append(a.Losses, loss)
	}
	_, err = group.Meet(ctx, g, "bench: the last step", 0, nil)
	a.MS = []float64{milliseconds(time.Since(begin)) / o.Steps}
	return a, err
}
