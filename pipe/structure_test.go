package pipe_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"penstock/internal/torchtest"
	"penstock/nn"
	"penstock/pipe"
	"penstock/schedule"
	"penstock/torch"
)

// A pipe is a list of the model's flattened layers, under the names that they have in the model, on whatever stage.
func TestPipeIsASequenceOfLayers(t *testing.T) {
	torchtest.Check(t)
	model := nn.NewSequential().Add("a", nn.NewLinear(2, 2)).Add("b", nn.NewSequential(nn.NewTanh(), nn.NewLinear(2, 2))).Add("c", nn.NewTanh())
	for _, balance := range cuts(4, 4) {
		p, err := pipe.New(model, pipe.Config{Balance: balance})
		if err != nil {
			t.Fatal(err)
		}
		var names, staged, states []string
		for _, l := range p.Layers() {
			names = append(names, l.Name)
		}
		for _, s := range p.Stages() {
			for _, l := range s.Layers {
				staged = append(staged, l.Name)
			}
			for _, q := range s.State() {
				states = append(states, q.Name)
			}
		}
		want := []string{"a", "b.0", "b.1", "c"}
		if p.Len() != 4 || !reflect.DeepEqual(names, want) || !reflect.DeepEqual(staged, want) {
			t.Errorf("balance %v: %d layers %v, by stage %v, want %v", balance, p.Len(), names, staged, want)
		}
		if want := []string{"a.weight", "a.bias", "b.1.weight", "b.1.bias"}; !reflect.DeepEqual(states, want) {
			t.Errorf("balance %v: parameters %v, want %v", balance, states, want)
		}
		for i := -4; i < 4; i++ {
			if l, err := p.Layer(i); err != nil || l.Name != want[(i+4)%4] {
				t.Errorf("layer %d is %q, want %q; %v", i, l.Name, want[(i+4)%4], err)
			}
		}
		for _, i := range []int{-5, 4} {
			if _, err := p.Layer(i); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("no layer %d among 4; want -4 to 3", i)) {
				t.Errorf("got %v", err)
			}
		}
		if p.Model() != model {
			t.Error("the pipe's model is another")
		}
		p.Close()
	}
	nn.Free(model)
}

// Parameters and buffers are made on the device of their stage and nowhere else, and move when the model is cut anew.
func TestParametersLiveOnTheirStage(t *testing.T) {
	torchtest.Check(t)
	model := nn.NewSequential(nn.NewLinear(8, 8), nn.NewBatchNorm1d(8, nn.BatchNormConfig{}), nn.NewLinear(8, 3))
	defer nn.Free(model)
	sizes := []int64{(64 + 8) * 4, 4*8*4 + 8, (24 + 3) * 4} // of the layers, in bytes
	var base [3]int64
	for i := range base {
		base[i] = torch.CPU(i).Memory().Live
	}
	for _, balance := range cuts(3, 3) {
		p, err := pipe.New(model, pipe.Config{Balance: balance})
		if err != nil {
			t.Fatal(err)
		}
		first := 0
		for i := range base {
			want := int64(0)
			if i < len(balance) {
				for _, n := range sizes[first : first+balance[i]] {
					want += n
				}
				first += balance[i]
			}
			if got := torch.CPU(i).Memory().Live - base[i]; got != want {
				t.Errorf("balance %v: %d bytes on cpu:%d, want %d", balance, got, i, want)
			}
		}
		p.Close()
	}
}

// Convert makes every floating-point parameter and buffer another type, and leaves counts as they are.
func TestConvert(t *testing.T) {
	torchtest.Check(t)
	model := nn.NewSequential(nn.NewLinear(4, 4), nn.NewBatchNorm1d(4, nn.BatchNormConfig{}), nn.NewLinear(4, 2))
	p := started(t, model, pipe.Config{Balance: []int{1, 1, 1}, Chunks: 2})
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	for _, d := range []torch.DType{torch.Float64, torch.BFloat16, torch.Float32} {
		if err := p.Convert(context.Background(), d); err != nil {
			t.Fatal(err)
		}
		for _, s := range nn.State(model) {
			want := d
			if s.Name == "1.num_batches_tracked" {
				want = torch.Int64
			}
			if s.Tensor().DType() != want {
				t.Errorf("converted to %v: %s is %v", d, s.Name, s.Tensor())
			}
		}
		b := pipe.Batch{Input: c.To(normal(4, 4)(c, 0), d), Target: c.To(normal(4, 2)(c, 1), d)}
		if _, err := p.Step(context.Background(), b, mean{}); err != nil { // aten::mse_loss knows no bfloat16 on CPU
			t.Errorf("%v: %v", d, err)
		}
		nn.ZeroGrads(model)
	}
	for _, d := range []torch.DType{torch.Int64, torch.Bool} {
		if err := p.Convert(context.Background(), d); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("cannot be converted to %v; want a floating-point type", d)) {
			t.Errorf("got %v", err)
		}
	}
}

// With copy workers a timeline has the workers that compute, one for each of Devices in their order, and then as many that copy. Every action is on the worker that the program says.
func TestTimelineOfCopyWorkers(t *testing.T) {
	torchtest.Check(t)
	for _, on := range [][]torch.Device{devices(4), {torch.CPU(0), torch.CPU(1), torch.CPU(0), torch.CPU(1)}, make([]torch.Device, 4)} {
		p := started(t, fourStages(), pipe.Config{Balance: []int{1, 1, 1, 1}, Devices: on, Chunks: 3, CopyWorkers: true, Record: true})
		c := torch.NewCtx(torch.Options{})
		result, err := p.Step(context.Background(), pipe.Batch{Input: normal(6, 4)(c, 0), Target: normal(6, 4)(c, 1)}, squares{})
		if err != nil {
			t.Fatal(err)
		}
		n := len(p.Devices())
		line := result.Timeline
		if line.Workers != 2*n {
			t.Errorf("%v: %d workers, want %d", on, line.Workers, 2*n)
		}
		if err := line.Validate(); err != nil {
			t.Error(err)
		}
		at := map[torch.Device]int{}
		for i, d := range p.Devices() {
			at[d] = i
		}
		transfers := 0
		for _, e := range line.Events {
			want := at[on[e.Action.Stage]]
			if e.Action.Kind.Transfer() {
				want += n
				transfers++
			}
			if e.Worker != want {
				t.Errorf("%v: %v is on worker %d, want %d", on, e.Action, e.Worker, want)
			}
		}
		if want := 3 * 2 * 4; transfers != want { // three pairs of neighbours and the skip, both ways
			t.Errorf("%v: %d transfers, want %d", on, transfers, want)
		}
		for w := range line.Workers {
			if idle := line.Idle(w); idle < 0 || idle > 1 {
				t.Errorf("worker %d is idle for %v of the time", w, idle)
			}
		}
		program, err := schedule.GPipe(schedule.Config{Stages: 4, MicroBatches: 3, Worker: workersOf(on), Skips: []schedule.Edge{{From: 0, To: 3}}, CopyWorkers: true,
			Recompute: func(_, i int) bool { return i > 0 }})
		if err != nil {
			t.Fatal(err)
		}
		graph := program.Graph()
		if len(graph.Actions) != len(line.Events) {
			t.Errorf("%v: %d events, the program has %d actions", on, len(line.Events), len(graph.Actions))
		}
		for _, e := range line.Events {
			if id, ok := graph.IndexOf(e.Action); !ok || graph.Worker[id] != e.Worker {
				t.Errorf("%v: %v on worker %d is not in the program", on, e.Action, e.Worker)
			}
		}
		c.Close()
		p.Close()
	}
}

func workersOf(on []torch.Device) []int {
	out, index := make([]int, len(on)), map[torch.Device]int{}
	for i, d := range on {
		if _, ok := index[d]; !ok {
			index[d] = len(index)
		}
		out[i] = index[d]
	}
	return out
}

// What a caller does later to the slices of a Config, to those that Config returns, or to the model, does not reach the pipe.
func TestPipeIsNotChangedFromOutside(t *testing.T) {
	torchtest.Check(t)
	model := small()
	cfg := pipe.Config{Balance: []int{2, 2}, Devices: devices(2), Checkpoints: []pipe.Checkpoint{pipe.Never, pipe.Never}, Chunks: 2}
	p := started(t, model, cfg)
	before, err := p.Program(2)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Checkpoints[0], cfg.Balance[0], cfg.Devices[0] = pipe.Always, 9, torch.CPU(5)
	got := p.Config()
	got.Checkpoints[1], got.Balance[1] = pipe.Always, 7
	p.Layers()[0].Name = "other"
	model.Add("later", nn.NewTanh())
	if now := p.Config(); fmt.Sprint(now.Balance, now.Devices, now.Checkpoints) != "[2 2] [cpu:0 cpu:1] [never never]" {
		t.Errorf("the configuration is %v %v %v", now.Balance, now.Devices, now.Checkpoints)
	}
	after, err := p.Program(3)
	if err != nil || strings.Contains(after.String(), "R") || before.String() == after.String() {
		t.Errorf("the program is %v, %v", after, err)
	}
	if p.Len() != 4 || p.Layers()[0].Name != "0" {
		t.Errorf("%d layers, the first is %q", p.Len(), p.Layers()[0].Name)
	}
}
