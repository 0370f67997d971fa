package examples

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"penstock.example/autoremat"
	"penstock.example/balance"
	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/planner"
	"penstock.example/profile"
	"penstock.example/remat"
	"penstock.example/remat/solver"
	"penstock.example/schedule"
	"penstock.example/torch"
	"penstock.example/trace"
	"penstock.example/train"
)

// wrong is a configuration that is refused because of one field.
type wrong struct {
	config any
	value  string // as the error says it
	remedy string
}

// whole is the plan of a stage of three layers and a micro-batch.
func whole(device string) *planner.Plan {
	p, err := planner.Parse("device " + device + "\nstage 0 device=" + device + " layers=3 policy=never\n  0 S0 L B0\nprogram whole stages=1 micro-batches=1\nworker 0: 0F0 0B0\n")
	if err != nil {
		panic(err)
	}
	return p
}

// step is a planning problem of two stages with something wrong in it.
func step(wrong func(*planner.Problem)) planner.Problem {
	p := planner.Problem{MicroBatches: 2, Devices: []planner.Device{{Name: "cpu:0"}, {Name: "cpu:1"}},
		Stages: []planner.Stage{{Layers: 1, Policy: planner.Never}, {Device: 1, Layers: 1, Policy: planner.Never}}}
	wrong(&p)
	return p
}

// wrongs has for each field of a configuration what is refused; unwrong says why there is nothing
// wrong that the field can be.
var (
	nan    = math.NaN()
	wrongs = map[string][]wrong{
		"pipe.Config.Balance": {
			{pipe.Config{Balance: []int{1, 0, 2}}, "[1 0 2]: stage 1 has 0 layers", "want at least 1 layer in each stage and the 3 layers in all; balance.Partition finds a balance"},
			{pipe.Config{Balance: []int{2}}, "[2]: it adds up to 2", "the 3 layers in all"},
			{pipe.Config{Balance: []int{2, math.MaxInt, 2}}, "it adds up to more than the 3 layers", "the 3 layers in all"},
			{pipe.Config{Balance: []int{}}, "[]: it adds up to 0", "the 3 layers in all"},
		},
		"pipe.Config.Devices": {
			{pipe.Config{Balance: []int{1, 2}, Devices: []torch.Device{torch.CPU(0)}}, "[cpu:0]: 1 for 2 stages", "want one for each stage"},
			{pipe.Config{Devices: []torch.Device{torch.CPU(-1)}}, "there is no cpu:-1", "from 0 to 1022"},
			{pipe.Config{Devices: []torch.Device{torch.CUDA(0)}}, "cannot use cuda:0", "want cpu:0, cpu:1, ..."},
		},
		"pipe.Config.Group": {
			{pipe.Config{Balance: []int{3}, Group: group.Local(2)[1]}, "of 2 processes: 1 stages in each of 1 replicas leave some without one", "want as many stages as a replica has processes, or more"},
		},
		"pipe.Config.Replicas": {
			{pipe.Config{Replicas: -1}, "-1", "want at least 0"},
			{pipe.Config{Replicas: 2}, "2: there is no Group", "want one whose members have all replicas: of group.Join, or of group.Local within this process"},
			{pipe.Config{Replicas: 2, Group: group.Local(3)[1]}, "2: the group has 3 members", "want a number of members that the replicas share out evenly"},
		},
		"pipe.Config.Ranks": {
			{pipe.Config{Ranks: []int{0}}, "[0]: there is no Group", "want Ranks with a Group of several processes, or neither"},
			{pipe.Config{Balance: []int{1, 2}, Group: group.Local(2)[0], Ranks: []int{0}}, "[0]: 1 for 2 stages", "want the rank of the process of each stage"},
			{pipe.Config{Balance: []int{1, 2}, Group: group.Local(2)[0], Ranks: []int{0, 0}}, "[0 0]: rank 1 has no stage", "want a stage for each rank of the group"},
			{pipe.Config{Balance: []int{1, 1, 1}, Group: group.Local(2)[0], Ranks: []int{0, 1, 2}}, "[0 1 2]: stage 2 is on rank 2", "want 0 to 1"},
		},
		"pipe.Config.Schedule": {
			{pipe.Config{Balance: []int{1, 2}, Chunks: 2, Schedule: schedule.Fixed(whole("cpu:0").Program)}, "for 2 stages on workers [0 1] and 2 micro-batches: schedule: a given program: it has 1 stages, and 2 are asked for", "other Balance, Devices or Chunks"},
			{pipe.Config{Schedule: schedule.Fixed(schedule.AddReduce(whole("cpu:0").Program))}, "for 1 stages on workers [0] and 1 micro-batches: its program reduces gradients over replicas, and a pipe is one", "want one without reductions"},
			{pipe.Config{Chunks: 2, Schedule: schedule.Fixed(whole("cpu:0").Program)}, "it has 1 micro-batches, and 2 are asked for", "other Balance, Devices or Chunks"},
		},
		"planner.Problem.MicroBatches": {{step(func(p *planner.Problem) { p.MicroBatches = -1 }), "-1", "want at least 1"}},
		"planner.Problem.Larger":       {{step(func(p *planner.Problem) { p.Larger = 3 }), "3", "at most 2, or 0 for all"}},
		"planner.Problem.Skips":        {{step(func(p *planner.Problem) { p.Skips = []planner.Skip{{From: 1, To: 1}} }), `"1 to 1": the stages of skip 0`, "want an earlier and a later one of 2"}},
		"planner.Problem.Ties":         {{step(func(p *planner.Problem) { p.Ties = []planner.Tie{{Earlier: 0, Later: 2}} }), `"0 and 2": the stages of tie 0`, "want an earlier and a later one of 2"}},
		"planner.Problem.Devices": {
			{step(func(p *planner.Problem) { p.Devices[1].Name = "cpu:0" }), `"cpu:0": device 1 has this name`, "want a name that no other has"},
			{step(func(p *planner.Problem) { p.Devices[1].Limit = -5 }), "-5: the limit of cpu:1", "want a number of bytes, or 0 for none"},
			{step(func(p *planner.Problem) { p.Devices[0].Live = -5 }), "-5: the bytes that are live on cpu:0", "want 0 or more"},
			{step(func(p *planner.Problem) { p.Stages[1].Device = 0 }), `"cpu:1": it has no stage`, "want those alone that have one"},
		},
		"planner.Problem.Stages": {
			{step(func(p *planner.Problem) { p.Stages = nil }), "0", "want at least one"},
			{step(func(p *planner.Problem) { p.Stages[1].Device = 2 }), "2: the device of stage 1", "want an index below 2"},
			{step(func(p *planner.Problem) { p.Stages[1].Policy = "sometimes" }), `"sometimes": the policy of stage 1`, "want one of"},
			{step(func(p *planner.Problem) { p.Stages[0].Layers = 0 }), "0: the layers of stage 0", "want at least 1"},
			{step(func(p *planner.Problem) {
				p.Devices, p.Stages[1].Device, p.Stages[1].Policy = p.Devices[:1], 0, planner.Optimal
			}), `"optimal": the policy of some stages on cpu:0`, "want it for all stages of a device, or for none"},
		},
		"solver.Options.Slots": {{solver.Options{Slots: -1}, "-1", "want at least 0"}},
		"solver.Options.Gap":   {{solver.Options{Gap: math.NaN()}, "NaN", "such as 0.001"}},
		"pipe.Config.Chunks":   {{pipe.Config{Chunks: -3}, "-3", "want at least 0"}},
		"pipe.Config.Checkpoint": {
			{pipe.Config{Balance: []int{1, 2}, Devices: make([]torch.Device, 2), Checkpoint: pipe.PerStage(pipe.Optimal, pipe.Never)}, "stages 0 and 1 share cpu:0", "want optimal for all stages of a device, or for none"},
			{pipe.Config{Checkpoint: "sometimes"}, `"sometimes" is no policy`, "want never, except_last, always or optimal"},
			{pipe.Config{Balance: []int{1, 2}, Checkpoint: "never,always,never"}, "3 policies for 2 stages", "want one for each stage, or one for all"},
		},
		"pipe.Config.Budget": {
			{pipe.Config{Budget: []int64{1}}, "[1]: the policy optimal alone has a budget", "want Checkpoint Optimal with it"},
			{pipe.Config{Checkpoint: pipe.Optimal, Budget: []int64{1, 2}}, "2 numbers of bytes for 1 stages", "want one for each stage"},
			{pipe.Config{Checkpoint: pipe.Optimal, Budget: []int64{-1}}, "stage 0 has -1 bytes", "want at least 1, or 0 for none"},
		},
		"pipe.Config.Plan": {
			{pipe.Config{Plan: &planner.Plan{}}, "for 0 stages and 0 micro-batches: planner: the plan has no program", "want one that planner.Solve or planner.Parse returned"},
			{pipe.Config{Plan: &planner.Plan{Devices: whole("cpu:0").Devices, Stages: whole("cpu:0").Stages, Program: schedule.AddReduce(whole("cpu:0").Program)}}, "its program reduces gradients over replicas, and a pipe is one", "want one without reductions"},
			{pipe.Config{Plan: whole("cpu:0"), Balance: []int{3}}, "the configuration says what the plan says", "leave Balance, Checkpoint, Budget and Schedule out"},
			{pipe.Config{Plan: whole("tpu:0")}, "stage 0: ", "want a device of this machine"},
		},
		"pipe.Config.Threads": {{pipe.Config{Threads: 257}, "257", "want 0 to 256"}, {pipe.Config{Threads: -1}, "-1", "want 0 to 256"}},
		"pipe.Config.Cores":   {{pipe.Config{Cores: [][]int{{100000}}}, "no such core: 100000", "want cores that the process may run on, or nil"}},

		"train.ThreadsConfig.Most":       {{train.ThreadsConfig{Batch: 4}, "0", "want 1 to 256"}, {train.ThreadsConfig{Batch: 4, Most: 257}, "257", "want 1 to 256"}},
		"train.ThreadsConfig.Batch":      {{train.ThreadsConfig{Most: 2}, "0", "want at least 1"}},
		"train.ThreadsConfig.Chunks":     {{train.ThreadsConfig{Most: 2, Batch: 4, Chunks: -1}, "-1", "want at least 0"}},
		"train.BalanceConfig.Stages":     {{train.BalanceConfig{Batch: 4}, "0", "want 1 to 3"}, {train.BalanceConfig{Batch: 4, Stages: 4}, "4", "want 1 to 3"}},
		"train.BalanceConfig.Batch":      {{train.BalanceConfig{Stages: 1}, "0", "want at least 1"}},
		"train.BalanceConfig.Chunks":     {{train.BalanceConfig{Stages: 1, Batch: 4, Chunks: -1}, "-1", "want at least 0"}},
		"train.BalanceConfig.Checkpoint": {{train.BalanceConfig{Stages: 1, Batch: 4, Checkpoint: "often"}, `"often" is no policy`, "want never"}},
		"train.Loop.ClipNorm":            {{train.Loop{ClipNorm: nan}, "NaN", "want a finite number that is not negative"}, {train.Loop{ClipNorm: -1}, "-1", "not negative"}},
		"train.Loop.Scaler":              {{train.Loop{Scaler: &optim.Scaler{Scale: 3}}, "3", "want the zero Scaler"}},
		"train.Loop.Steps":               {{train.Loop{Steps: -1}, "-1", "want at least 0"}},
		"train.Loop.Accumulate":          {{train.Loop{Accumulate: -1}, "-1", "want at least 0"}},
		"train.Loop.Epochs":              {{train.Loop{Epochs: -1}, "-1", "want at least 0"}},
		"train.Validation.Batch":         {{train.Validation{Batch: -1}, "-1", "want at least 0"}},
		"train.Validation.Patience":      {{train.Validation{Patience: -1}, "-1", "want at least 0"}},
		"train.EvaluateConfig.Batch":     {{train.EvaluateConfig{}, "0", "want at least 1"}},
		"train.Loop.Step":                {{train.Loop{Step: -1}, "-1", "want at least 0"}},

		"profile.Config.Device":       {{profile.Config{Device: torch.CPU(torch.MaxCPU)}, "cpu:1023: there is no such device", "from 0 to 1022"}, {profile.Config{Device: torch.CUDA(0)}, "cannot use cuda:0", "want cpu:0"}},
		"profile.Config.Peer":         {{profile.Config{Peer: torch.CPU(-1)}, "cpu:-1: there is no such device", "from 0 to 1022"}},
		"profile.Config.Beside":       {{profile.Config{Beside: []torch.Device{torch.CPU(0)}}, "cpu:0: it is there twice", "want other devices"}},
		"profile.Config.Threads":      {{profile.Config{Threads: 257}, "257", "want 0 to 256"}},
		"profile.Config.Warmup":       {{profile.Config{Warmup: -1}, "-1", "want at least 0"}},
		"profile.Config.MicroBatches": {{profile.Config{MicroBatches: -1}, "-1", "want at least 0"}},
		"profile.Config.Repeats":      {{profile.Config{Repeats: -1}, "-1", "want at least 0"}},
		"profile.Config.Balance":      {{profile.Config{Balance: []int{3, 0}}, "stage 1 has 0 layers", "the 3 layers in all"}},
		"profile.Config.Target":       {{profile.Config{Loss: nn.MSE()}, "[]: there are none for the loss", "want those of the sample"}},
		"profile.Config.Workers":      {{profile.Config{Balance: []int{1, 2}, Workers: []int{0}}, "[0]: 1 for 2 stages", "want one for each stage"}},
		"profile.Config.Fewer":        {{profile.Config{Balance: []int{3}, Fewer: []*torch.Tensor{}}, "[]: it has no rows", "want a sample of fewer rows, or nil"}},
		"profile.Config.MostUnits":    {{profile.Config{MostUnits: -1}, "-1", "want at least 0"}},

		"balance.TimeConfig.Recomputed": {{balance.TimeConfig{Recomputed: []float64{0, 2}}, "[0 2]: stage 1 has 2", "want shares of the micro-batches, 0 to 1"},
			{balance.TimeConfig{Recomputed: []float64{0, 0, 0}}, "[0 0 0]: 3 for 2 stages", "want one for each stage, one for all, or none"}},
		"balance.TimeConfig.SecondsPerByte": {{balance.TimeConfig{SecondsPerByte: nan}, "NaN", "want a finite number that is not negative"}},
		"balance.TimeConfig.Skips": {{balance.TimeConfig{Skips: []balance.Skip{{From: 3}}}, "number 0 is from layer 3", "want one of 0 to 2"},
			{balance.TimeConfig{Skips: []balance.Skip{{From: 1, To: []int{1}}}}, "number 0 goes from layer 1 to [1]", "want at least one layer, ascending, after 1 and at most 2"},
			{balance.TimeConfig{Skips: []balance.Skip{{From: 0, To: []int{1}, Leave: -4}}}, "number 0 has -4 bytes", "want none below 0"}},
		"balance.TimeConfig.Ties":  {{balance.TimeConfig{Ties: []balance.Tie{{From: 2, To: []int{0}}}}, "number 0 goes from layer 2 to [0]", "want at least one layer"}},
		"balance.SizeConfig.Held":  {{balance.SizeConfig{Held: []balance.Held{{}, {Inputs: -1}}}, "stage 1 has {1 -1}", "want neither below 0"}, {balance.SizeConfig{Held: make([]balance.Held, 3)}, "3 for 2 stages", "want one for each stage, one for all, or none"}},
		"balance.SizeConfig.State": {{balance.SizeConfig{State: -1}, "-1", "want a finite number that is not negative"}},
		"balance.SizeConfig.Input": {{balance.SizeConfig{Input: -1}, "-1", "want at least 0"}},
		"balance.SizeConfig.Skips": {{balance.SizeConfig{Skips: []balance.Skip{{From: -1}}}, "number 0 is from layer -1", "want one of 0 to 2"}},
		"balance.SizeConfig.Ties":  {{balance.SizeConfig{Ties: []balance.Tie{{From: 1, To: []int{2}, Gradient: -8}}}, "number 0 has -8 bytes", "want none below 0"}},

		"torch.Options.Threads": {{torch.Options{Threads: 257}, "257", "want 0 to 256"}, {torch.Options{Threads: -1}, "-1", "want 0 to 256"}},

		"trace.Options.Workers": {{trace.Options{Workers: []string{"a"}}, "[a]: 1 for 2 workers", "want one for each worker, or none"}},

		"autoremat.Config.Limit":     {{autoremat.Config{Limit: -1}, "-1", "want a number of bytes, or 0 for what is free"}},
		"autoremat.Config.Slots":     {{autoremat.Config{Slots: -1}, "-1", "want at least 0"}, {autoremat.Config{Slots: 1, Optimizer: sgd()}, "1: an Optimizer tells them itself", "want one of the two"}},
		"autoremat.Config.Warmup":    {{autoremat.Config{Warmup: -1}, "-1", "want at least 0"}},
		"autoremat.Config.Repeats":   {{autoremat.Config{Repeats: -1}, "-1", "want at least 0"}},
		"autoremat.Config.MostUnits": {{autoremat.Config{MostUnits: -1}, "-1", "want at least 0"}},

		"optim.Config.LR":          {{named("sgd", optim.Config{LR: nan}), "NaN", "want a finite number that is not negative"}, {named("adam", optim.Config{LR: -1}), "-1", "want a finite number"}},
		"optim.Config.WeightDecay": {{named("sgd", optim.Config{WeightDecay: math.Inf(1)}), "+Inf", "want a finite number"}},
		"optim.Config.Momentum":    {{named("sgd", optim.Config{Momentum: -1}), "-1", "want a finite number"}, {named("adam", optim.Config{Momentum: 0.9}), "0.9: it is no setting of adam", "want it left out"}},
		"optim.Config.Dampening":   {{named("sgd", optim.Config{Dampening: nan}), "NaN", "want a finite number"}},
		"optim.Config.Nesterov":    {{named("sgd", optim.Config{Nesterov: true}), "true", "want Momentum above 0 and Dampening 0 with it"}},
		"optim.Config.Betas[0]":    {{named("adam", optim.Config{Betas: [2]float64{1, 0}}), "1", "want a number from 0 to 1, 1 excluded"}},
		"optim.Config.Betas[1]":    {{named("adam", optim.Config{Betas: [2]float64{0, -1}}), "-1", "want a number from 0 to 1, 1 excluded"}},
		"optim.Config.Eps":         {{named("adam", optim.Config{Eps: -1}), "-1", "want a finite number"}},
		"optim.Config.Alpha":       {{named("rmsprop", optim.Config{Alpha: 1}), "1", "want a number from 0 to 1, 1 excluded"}},
		"optim.Config.Groups":      {{named("sgd", optim.Config{Groups: []optim.Group{{Params: "*.bias", Scale: -1}}}), "*.bias:scale=-1", "want a Scale that is a finite number and not negative"}},
		"optim.Config.Centered":    {{named("sgd", optim.Config{Centered: true}), "true: it is no setting of sgd", "want it left out"}},

		"optim.ScheduleConfig.LR":          {{named("constant", optim.ScheduleConfig{}), "0", "want a finite number above 0"}},
		"optim.ScheduleConfig.WarmupSteps": {{named("constant", optim.ScheduleConfig{LR: 1, WarmupSteps: -1}), "-1", "want at least 0"}},
		"optim.ScheduleConfig.TotalSteps": {{named("cosine", optim.ScheduleConfig{LR: 1, WarmupSteps: 3, TotalSteps: 3}), "3", "want more than the 3 of the warm-up"},
			{named("step", optim.ScheduleConfig{LR: 1}), "0", "want more than the 0 of the warm-up, or a StepSize"}, {named("constant", optim.ScheduleConfig{LR: 1, TotalSteps: -1}), "-1", "want at least 0"}},
		"optim.ScheduleConfig.StepSize": {{named("step", optim.ScheduleConfig{LR: 1, StepSize: -1}), "-1", "want at least 0"}, {named("cosine", optim.ScheduleConfig{LR: 1, StepSize: 2}), "2", "for the step schedule"}},
		"optim.ScheduleConfig.Gamma":    {{named("step", optim.ScheduleConfig{LR: 1, StepSize: 1, Gamma: nan}), "NaN", "want a finite number"}, {named("cosine", optim.ScheduleConfig{LR: 1, Gamma: 2}), "2", "for the step schedule"}},
		"optim.ScheduleConfig.MinLR":    {{named("cosine", optim.ScheduleConfig{LR: 1, MinLR: 2}), "2", "want a number from 0 to LR, 1"}, {named("step", optim.ScheduleConfig{LR: 1, MinLR: 1}), "1", "for the cosine schedule"}},

		"data.LoaderConfig.BatchSize": {{data.LoaderConfig{}, "0", "want at least 1"},
			{data.LoaderConfig{BatchSize: 5000, DropLast: true}, "5000: 1024 samples make no whole batch", "want smaller batches, or DropLast off"}},
		"data.LoaderConfig.Prefetch": {{data.LoaderConfig{BatchSize: 1, Prefetch: -1}, "-1", "want at least 0"}},
		"data.LoaderConfig.Augment":  {{data.LoaderConfig{BatchSize: 1, Augment: data.Augment{Crop: -1}}, "Crop is negative", "want a Crop of at least 0"}},
		"data.LoaderConfig.Start":    {{data.LoaderConfig{BatchSize: 512, Start: data.Position{Batch: 3}}, "{0 3}: the position is of another", "want a batch from 0 to 2"}},
		"data.Options.Size":          {{named("images", data.Options{Size: -1}), "-1", "want at least 1"}},
		"data.Options.Channels":      {{named("images", data.Options{Channels: 2}), "2", "want 3 for colours, or 1 for the brightness"}},
		"data.Options.Augment":       {{named("text", data.Options{Window: 8, Augment: data.Augment{Flip: true}}), "inputs are int64 [8]", "want images"}},
		"data.Options.Classes":       {{named("tokens", data.Options{Classes: -1}), "-1", "want at least 0"}},
		"data.Options.TokenBytes":    {{named("tokens", data.Options{TokenBytes: 3}), "3", "want 2 for uint16, or 4 for uint32"}},
		"data.Options.Window":        {{named("text", data.Options{Window: -1}), "-1", "want at least 1"}},
		"data.Options.Holdout":       {{named("text", data.Options{Holdout: 1}), "1", "want a share between 0 and 1"}},
		"data.Synthetic.Task":        {{data.Synthetic{Task: "dreams"}, "dreams", "want one of classification, segmentation, next token"}},
		"data.Synthetic.Train":       {{data.Synthetic{Train: -1}, "-1", "want at least 1, or 0 for 1024"}},
		"data.Synthetic.Test":        {{data.Synthetic{Test: -1}, "-1", "want at least 1, or 0 for 256"}},
		"data.Synthetic.Classes":     {{data.Synthetic{Classes: -1}, "-1", "want at least 1, or 0 for 10"}},
		"data.Synthetic.Channels":    {{data.Synthetic{Channels: -1}, "-1", "want at least 1, or 0 for 1"}},
		"data.Synthetic.Height":      {{data.Synthetic{Height: -1}, "-1", "want at least 1, or 0 for 28"}},
		"data.Synthetic.Width":       {{data.Synthetic{Width: -1}, "-1", "want at least 1, or 0 for 28"}},

		"models.Options.Classes":      {{named("mlp", models.Options{Classes: -1}), "-1", "want Classes from 1 to 1048576, or 0 for 10"}},
		"models.Options.Channels":     {{named("mlp", models.Options{Channels: 5000}), "5000", "want Channels from 1 to 4096"}, {named("gpt", models.Options{Channels: 3}), "3", "want it left out; the model has"}},
		"models.Options.Size":         {{named("amoebanetd", models.Options{Size: 33}), "33", "want a multiple of 32"}, {named("inception_v3", models.Options{Size: 10}), "10", "want at least"}, {named("unet", models.Options{Size: 16}), "16", "want at least"}},
		"models.Options.Width":        {{named("amoebanetd", models.Options{Width: 9}), "9", "want D a multiple of 8"}, {named("gpt", models.Options{Width: 9}), "9", "want a multiple of the 4 Heads"}, {named("unet", models.Options{Width: 1}), "1", "want C at least 2"}},
		"models.Options.Depth":        {{named("amoebanetd", models.Options{Depth: 17}), "17", "want L a multiple of 3"}, {named("unet", models.Options{Depth: 30}), "30", "want at most"}},
		"models.Options.Convolutions": {{named("unet", models.Options{Convolutions: -1}), "-1", "want B (Convolutions) from 1 to 1024, or 0 for 6"}},
		"models.Options.Heads":        {{named("gpt", models.Options{Heads: -1}), "-1", "want Heads from 1 to"}},
		"models.Options.Context":      {{named("mlp", models.Options{Context: 5}), "5", "want it left out; the model has"}},
		"models.Options.Dropout":      {{named("unet", models.Options{Dropout: 1}), "1", "want at least 0 and below 1"}, {named("unet", models.Options{Dropout: 0.5, NoDropout: true}), "0.5", "not both"}, {named("resnet20", models.Options{Dropout: 0.5}), "0.5", "want it left out"}},
		"models.Options.NoDropout":    {{named("resnet20", models.Options{NoDropout: true}), "true", "want it left out"}},
		"models.Options.Aux":          {{named("mlp", models.Options{Aux: true}), "true", "want it left out; the model has"}},

		"group.Config.Size":      {{group.Config{}, "0", "want 1 to 65536"}},
		"group.Config.Rank":      {{group.Config{Size: 2, Rank: 2}, "2", "want 0 to 1"}, {group.Config{Size: 2, Rank: -1}, "-1", "want 0 to 1"}},
		"group.Config.Address":   {{group.Config{Size: 2}, `""`, "want host:port of rank 0"}, {group.Config{Size: 2, Address: "here"}, `"here"`, "want host:port"}, {group.Config{Size: 2, Address: ":80"}, `":80"`, "want host:port"}, {group.Config{Size: 2, Address: "a:65536"}, "65536", "want host:port"}},
		"group.Config.Timeout":   {{group.Config{Size: 1, Timeout: -1}, "-1ns", "want at least 0s"}},
		"group.Config.Heartbeat": {{group.Config{Size: 1, Heartbeat: -1}, "-1ns", "want at least 0s"}},
		"group.Config.Silence":   {{group.Config{Size: 1, Silence: -1}, "-1ns", "want at least 0s"}, {group.Config{Size: 1, Silence: time.Second}, "1s: the heartbeat is every 1s", "want at least twice that"}},
		"group.Config.Restart":   {{group.Config{Size: 1, Restart: -1}, "-1", "want at least 0"}},
	}
	unwrong = map[string]string{
		"torch.Options.Device": "one that does not exist is refused when something is allocated", "torch.Options.Grad": "a switch", "torch.Options.Seed": "any number", "torch.Options.Autocast": "a switch",
		"trace.Options.Process":    "any text",
		"planner.Problem.Schedule": "its program is checked", "planner.Problem.Meet": "a switch", "planner.Problem.NoBound": "a switch", "planner.Problem.Rough": "a switch",
		"solver.Options.Steps": "any number", "solver.Options.NoBound": "a switch", "solver.Options.Rough": "a switch",
		"data.LoaderConfig.Seed": "any number", "data.LoaderConfig.Shuffle": "a switch", "data.LoaderConfig.DropLast": "a switch", "data.Synthetic.Seed": "any number", "data.Options.Seed": "any number",
		"data.Options.OnText": "a function, or nil", "data.Options.Like": "samples of another set, or nil", "data.Options.Mean": "checked with the images (data.NewImages)", "data.Options.Std": "checked with the images (data.NewImages)", "data.Options.Synthetic": "a data.Synthetic", "data.Options.CSV": "checked with the file", "data.Options.Tokenizer": "a path, checked when it is opened",
		"pipe.Config.Optimizer": "any optimizer", "pipe.Config.DeferredBatchNorm": "a switch", "pipe.Config.Autocast": "a switch",
		"pipe.Config.Seed": "any number", "pipe.Config.Record": "a switch",
		"train.ThreadsConfig.Profile": "a profile.Config", "train.ThreadsConfig.Loss": "any", "train.ThreadsConfig.Group": "one of group.Join",
		"train.BalanceConfig.Profile": "a profile.Config", "train.BalanceConfig.Loss": "any", "train.BalanceConfig.Group": "one of group.Join", "pipe.Config.Profile": "one of something else is not used",
		"train.Loop.Pipe": "nil is refused by name", "train.Loop.Optimizer": "nil is refused by name", "train.Loop.Loss": "nil is refused by name", "train.Loop.Loader": "nil is refused by name",
		"train.Loop.Validation": "a train.Validation", "train.Loop.Best": "that of a checkpoint", "train.Validation.Set": "nil is refused by name", "train.Validation.OnBatch": "any function", "train.Validation.OnResult": "any function",
		"train.EvaluateConfig.Loss": "any", "train.EvaluateConfig.OnBatch": "any function",
		"train.Loop.LRSchedule": "any", "train.Loop.OnStep": "any functions", "train.Loop.OnEpoch": "any function",
		"profile.Config.Seed": "any number", "profile.Config.Extras": "any values", "profile.Config.Autocast": "a switch", "profile.Config.Clock": "any function", "profile.Config.BytesOnly": "a switch",
		"profile.Config.Progress": "any function", "profile.Config.Loss": "any", "profile.Config.LossUnit": "a switch", "profile.Config.Split": "a switch", "profile.Config.FirstOnly": "a switch", "profile.Config.InputGrad": "a switch", "profile.Config.Lean": "a switch",
		"profile.Config.DeferredBatchNorm": "a switch", "profile.Config.Known": "one of something else is not used", "profile.Config.FewerTarget": "as Target",
		"group.Config.Token": "any text", "group.Config.Log": "any logger",
		"autoremat.Config.Optimizer": "any", "autoremat.Config.Loss": "any", "autoremat.Config.Report": "any function",
	}
)

// choice is a configuration of what has a name.
type choice struct {
	name   string
	config any
}

func named(name string, config any) choice { return choice{name, config} }

func sgd() optim.Optimizer {
	o, err := optim.SGD(optim.Config{})
	if err != nil {
		panic(err)
	}
	return o
}

// refused uses a configuration, which must fail.
func refused(t *testing.T, config any) error {
	ctx := context.Background()
	model := nn.NewSequential(nn.NewLinear(4, 4), nn.NewReLU(), nn.NewLinear(4, 2))
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x := c.Ones(torch.Float32, 2, 4)
	var name string
	if named, ok := config.(choice); ok {
		name, config = named.name, named.config
	}
	switch config := config.(type) {
	case planner.Problem:
		_, err := planner.Solve(ctx, config)
		return err
	case solver.Options:
		_, err := solver.Solve(ctx, remat.Chain{Layers: make([]remat.Layer, 1)}, 0, config)
		return err
	case pipe.Config:
		if err := config.Check(model); err != nil {
			return err
		}
		_, err := pipe.Open(model, config)
		return err
	case train.BalanceConfig:
		set, _, err := data.Open("synthetic", "", data.Options{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = train.BalanceByTime(ctx, model, set, config)
		return err
	case train.ThreadsConfig:
		set, _, err := data.Open("synthetic", "", data.Options{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = train.ThreadsByTime(ctx, model, set, config)
		return err
	case train.Loop:
		p, err := pipe.Open(model, pipe.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		config.Pipe, config.Optimizer, config.Loss = p, sgd(), nn.MSE()
		_, err = config.Run(ctx)
		return err
	case train.Validation:
		set, err := data.FromSlices([]float32{1, 2}, []int64{1}, []int{0, 1})
		if err != nil {
			t.Fatal(err)
		}
		config.Set = set
		return refused(t, train.Loop{Validation: &config})
	case train.EvaluateConfig:
		p, err := pipe.Open(model, pipe.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		set, err := data.FromSlices([]float32{1, 2}, []int64{1}, []int{0, 1})
		if err != nil {
			t.Fatal(err)
		}
		_, err = train.Evaluate(ctx, p, set, config)
		return err
	case profile.Config:
		_, err := profile.Measure(ctx, model, config, x)
		return err
	case autoremat.Config:
		_, err := autoremat.New(model, config)
		return err
	case optim.Config:
		_, err := optim.New(name, config)
		return err
	case optim.ScheduleConfig:
		_, err := optim.NewSchedule(name, config)
		return err
	case data.LoaderConfig:
		set, _, err := data.Open("synthetic", "", data.Options{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = data.NewLoader(set, config)
		return err
	case data.Options:
		file := filepath.Join(t.TempDir(), "text")
		if err := os.WriteFile(file, make([]byte, 1000), 0o666); err != nil {
			t.Fatal(err)
		}
		_, _, err := data.Open(name, file, config)
		return err
	case data.Synthetic:
		_, _, err := config.Open()
		return err
	case balance.TimeConfig:
		_, _, err := balance.ByTime(make([]balance.Layer, 3), 2, config)
		return err
	case balance.SizeConfig:
		_, _, err := balance.BySize(make([]balance.Layer, 3), 2, config)
		return err
	case group.Config:
		_, err := group.Join(ctx, config)
		return err
	case torch.Options:
		return torch.Try(func() { torch.NewCtx(config) })
	case trace.Options:
		return trace.Write(io.Discard, schedule.Timeline{Workers: 2}, config)
	case models.Options:
		_, err := models.New(name, config)
		return err
	}
	t.Fatalf("no use for a %T", config)
	return nil
}

// Whatever is refused of a configuration is a *ConfigError that has the field, the value and the
// remedy, also in its text.
func TestConfigurationErrorsNameFieldValueAndRemedy(t *testing.T) {
	for field, rows := range wrongs {
		for _, row := range rows {
			err := refused(t, row.config)
			var e *pipe.ConfigError
			if !errors.As(err, &e) {
				t.Errorf("%s: %v is no *ConfigError", field, err)
				continue
			}
			pkg, rest, _ := strings.Cut(field, ".")
			_, name, _ := strings.Cut(rest, ".")
			if text := e.Error(); e.Field != name || e.Remedy == "" || !strings.HasPrefix(text, pkgOf(pkg, e.Of)+": ") || !strings.Contains(text, ": "+name+" is ") ||
				!strings.Contains(text, row.value) || !strings.Contains(text, row.remedy) {
				t.Errorf("%s: got  %v\nwant %q and %q", field, err, row.value, row.remedy)
			}
		}
	}
}

// pkgOf is how the message begins: policies are pipe's wherever they are.
func pkgOf(pkg, of string) string {
	if strings.HasPrefix(of, pkg) || of == "pipe" || pkg == "solver" && of == "remat" {
		return of
	}
	return pkg
}

// Every field of a configuration is in one of the two lists.
func TestConfigurationsAreAllListed(t *testing.T) {
	for _, config := range []any{pipe.Config{}, train.BalanceConfig{}, train.ThreadsConfig{}, train.Loop{}, train.Validation{}, train.EvaluateConfig{}, profile.Config{}, autoremat.Config{}, optim.Config{}, optim.ScheduleConfig{}, models.Options{},
		data.LoaderConfig{}, data.Options{}, data.Synthetic{}, balance.TimeConfig{}, balance.SizeConfig{}, torch.Options{}, trace.Options{}, planner.Problem{},
		solver.Options{}, group.Config{}} {
		kind := reflect.TypeOf(config)
		for i := range kind.NumField() {
			f := kind.Field(i)
			if !f.IsExported() {
				continue
			}
			names := []string{fmt.Sprintf("%v.%s", kind, f.Name)}
			if f.Type.Kind() == reflect.Array {
				names = []string{names[0] + "[0]", names[0] + "[1]"}
			}
			for _, name := range names {
				if _, fine := unwrong[name]; fine == (len(wrongs[name]) > 0) {
					t.Errorf("%s: refused is %v, and never refused is %v; want one of them", name, len(wrongs[name]) > 0, fine)
				}
			}
		}
	}
}
