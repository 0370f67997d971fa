package pipe_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"penstock.example/group"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// Processes may name their devices alike: that is a device of each. Stages are then shared out in order.
func TestDevicesOfOneName(t *testing.T) {
	torchtest.Check(t)
	model := func() *nn.Sequential {
		return nn.NewSequential(nn.NewLinear(2, 3), nn.NewTanh(), nn.NewTanh(), nn.NewLinear(3, 1))
	}
	cpu, gpu := torch.CPU(0), torch.CUDA(0)
	for _, row := range []struct {
		devices []torch.Device
		size    int
		ranks   []int // given
		want    []int
		names   string
	}{
		{[]torch.Device{cpu, cpu, cpu, cpu}, 2, nil, []int{0, 0, 1, 1}, "rank:0/cpu:0 rank:1/cpu:0"},
		{[]torch.Device{cpu, torch.CPU(1), cpu, torch.CPU(1)}, 2, nil, []int{0, 1, 0, 1}, "cpu:0 cpu:1"},
		{[]torch.Device{cpu, torch.CPU(1), cpu, torch.CPU(1)}, 2, []int{0, 0, 1, 1}, []int{0, 0, 1, 1}, "rank:0/cpu:0 rank:0/cpu:1 rank:1/cpu:0 rank:1/cpu:1"},
		{[]torch.Device{cpu, cpu, cpu, cpu}, 2, []int{0, 1, 0, 1}, []int{0, 1, 0, 1}, "rank:0/cpu:0 rank:1/cpu:0"},
		{[]torch.Device{cpu, cpu, gpu, gpu}, 2, nil, []int{0, 0, 1, 1}, "cpu:0 cuda:0"},
	} {
		cfg := pipe.Config{Balance: []int{1, 1, 1, 1}, Devices: row.devices, Ranks: row.ranks, Group: group.Local(row.size)[0]}
		p, err := pipe.Open(model(), cfg)
		if err != nil {
			t.Fatalf("%+v: %v", row, err)
		}
		got := p.Config()
		if names := strings.Join(got.DeviceNames(), " "); !slices.Equal(got.Ranks, row.want) || names != row.names {
			t.Errorf("%+v: ranks %v, names %s", row, got.Ranks, names)
		}
		var mine []torch.Device
		for i, s := range p.Stages() {
			if s.Here {
				mine = append(mine, s.Device)
			}
			if s.Here != (got.Ranks[i] == 0) || s.Here && s.Device != row.devices[i] || !s.Device.Available() {
				t.Errorf("%+v: stage %d is here %v and on %v", row, i, s.Here, s.Device)
			}
		}
		for i, s := range p.Stages() { // what stands here for a device of another process is none of this one
			if !s.Here && slices.Contains(mine, s.Device) || p.DeviceHere(got.Workers()[i]) != s.Here {
				t.Errorf("%+v: stage %d of another process is on %v", row, i, s.Device)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	// Within one process they would have one account.
	_, errs := each(2, func(g *group.Group) (int, error) {
		p, err := pipe.New(model(), pipe.Config{Balance: []int{2, 2}, Devices: []torch.Device{cpu, cpu}, Group: g})
		if err == nil {
			err = p.Close()
		}
		return 0, err
	})
	for _, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "ranks 0 and 1 are in one process, and both have stages on cpu:0; want others for each") {
			t.Errorf("got %v", err)
		}
	}
	if !gpu.Available() {
		cfg := pipe.Config{Balance: []int{2, 2}, Devices: []torch.Device{cpu, gpu}, Group: group.Local(2)[1]}
		if err := cfg.Check(model()); err == nil || !strings.Contains(err.Error(), "here cannot use cuda:0") {
			t.Errorf("got %v", err)
		}
	}
}

// The names in a plan say which rank has a device.
func TestPlanOfDevicesOfOneName(t *testing.T) {
	torchtest.Check(t)
	q := deepProblem()
	q.steps = 1
	done, err := q.planned(pipe.Config{Balance: []int{4, 5}, Chunks: 2, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	plan := done.plan
	plan.Devices[0].Name, plan.Devices[1].Name = "rank:0/cpu:7", "rank:1/cpu:7"
	cfg := pipe.Config{Plan: plan, Group: group.Local(2)[1]}
	p, err := pipe.Open(q.model(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if got := fmt.Sprint(p.Config().Ranks, p.Config().Devices, p.Stages()[1].Here); got != "[0 1] [cpu:7 cpu:7] true" {
		t.Errorf("got %s", got)
	}
}
