package pipe

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"penstock.example/group"
	"penstock.example/internal/arg"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/plan"
	"penstock.example/profile"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// Config says how a model is cut and run. With more than one stage it needs a Balance.
type Config struct {
	// Balance is the number of layers of each stage, counted on the model's flattened layers. Nil
	// is one stage.
	Balance []int
	// Devices gives each stage its device; more than stages are ignored. Nil is cpu:0, cpu:1, ...,
	// which goes on from replica to replica. Stages on one device share its worker. A device is one of
	// the process that has the stage (Ranks): of the same name in two processes, such as the only GPU
	// of each of two machines, it is two devices. A process needs those of its own stages.
	Devices []torch.Device
	// Chunks is the number of micro-batches asked for; a batch with fewer rows has fewer. 0 is 1.
	Chunks int
	// Checkpoint is the policy of all stages, or a list with one for each. The zero value is
	// ExceptLast.
	Checkpoint Checkpoint
	// Budget is for the policy Optimal: the most bytes that the device of a stage may hold,
	// everything counted. It has a number for each stage, or one for all. While the pipe is open it
	// is the limit of the device. Of stages on one device the lowest counts. Nil or 0 is the
	// limit that the device has (torch.Device.SetLimit). Without a limit nothing is recomputed.
	Budget []int64
	// Optimizer is the optimizer that will update the model. The policy Optimal leaves memory for
	// the state that it has not allocated yet. It belongs to the caller. Nil is none.
	Optimizer optim.Optimizer
	// Plan is a plan that was made before, by another pipe or a program. The pipe runs it as it is.
	// Balance, Checkpoint, Budget and Schedule are those of the plan and must be left out. Devices
	// are its own too, unless others are given, of which as many stages share each. With Replicas
	// its program gets their sums, which must fit in its limits, unless it has them. Chunks is its number of micro-batches, or fewer if given. A batch with fewer micro-batches
	// runs the part of the plan for them. The limits of its stages hold as those of a Budget. Nil
	// lets the pipe plan.
	Plan *plan.Plan
	// Profile is for the policy Optimal: an earlier measurement of the model with the same loss and
	// rows of a micro-batch, such as a balance was found from. Its layers and times are not
	// measured again. Nil is none.
	Profile *profile.Profile
	// Schedule makes the programs that the workers run, such as schedule.OneFOneB, or
	// schedule.Fixed of a program. Nil is schedule.GPipe. Any program runs that schedule.Check
	// passes. Forward and Backward need one whose workers end their forwards before their first
	// backward (schedule.Program.Apart), such as GPipe's.
	Schedule schedule.Generator
	// DeferredBatchNorm moves the running statistics of batch norms once for each mini-batch, by
	// the mean and the unbiased variance of all its rows, instead of once for each micro-batch; see
	// nn.Deferred. The model is not converted.
	DeferredBatchNorm bool
	// Autocast runs forwards and recomputations in bfloat16 where that is safe; see torch.Options.
	// Parameters, their gradients and their optimizers stay as they are.
	Autocast torch.Autocast
	// Threads is the number of intra-op threads of each worker. 0 is 1, whatever the number of
	// cores: sums depend on the thread count.
	Threads int
	// Cores binds the worker of the i-th distinct device to a set of cores. Nil binds none.
	Cores [][]int
	// Seed is the root of initial weights and of all randomness.
	Seed uint64
	// Group is the processes that the stages are in, of which this is one; see Pipe. It belongs to
	// the caller, who closes it after the pipe. Nil is this process alone.
	Group *group.Group
	// Ranks is the rank in Group of the process of each stage. Every process needs a stage. Nil shares
	// the distinct devices out in order, as evenly as can be. Where there are fewer than processes, it
	// so shares the stages.
	Ranks []int
	// Replicas is how many times Group has the pipeline. Each replica trains on rows of its own, and
	// the gradients are summed over the replicas within a step. Replica 0 is the first members of
	// the group, and so on; Ranks are those of each replica. Replicas that are in one process, as
	// members of one group.Local, have a model each, and devices of different names. 0 is 1.
	Replicas int
	// Record makes every Step and Infer return a timeline.
	Record bool

	policies []Checkpoint // by stage
	lanes    []int        // in tests, by stage: stages on one device with different lanes have different workers
}

// MaxThreads is the most intra-op threads that a worker may have.
const MaxThreads = torch.MaxThreads

// ConfigError is a setting of a Config that New and Open refuse.
type ConfigError = arg.ConfigError

// ErrClosed, ErrNotPlaced, ErrNested and ErrAccumulating are sentinel errors of a Pipe.
var (
	ErrClosed    = errors.New("pipe: closed")
	ErrNotPlaced = errors.New("pipe: the model was not placed yet; call Place first")
	ErrNested    = errors.New("pipe: used from within itself") // by a layer, a loss or an update; see Pipe
	// ErrAccumulating is the error of an update between the first batch with Accumulate and the one
	// without, when each replica has gradients of its own.
	ErrAccumulating = errors.New("pipe: the gradients are not summed over the replicas yet; the last batch before an update is one without Accumulate")
)

// copied is the configuration with slices of its own, because the caller may change his later.
func (cfg Config) copied() Config {
	cfg.Balance, cfg.Devices, cfg.policies = slices.Clone(cfg.Balance), slices.Clone(cfg.Devices), slices.Clone(cfg.policies)
	cfg.Cores, cfg.Budget, cfg.Ranks = slices.Clone(cfg.Cores), slices.Clone(cfg.Budget), slices.Clone(cfg.Ranks)
	cfg.lanes = slices.Clone(cfg.lanes)
	return cfg
}

// Check returns a *ConfigError if the configuration does not fit the model. It allocates nothing.
func (cfg Config) Check(model *nn.Sequential) error {
	_, err := cfg.resolved(model.Layers())
	return err
}

// resolved is the configuration with its defaults filled in, or an error.
func (cfg Config) resolved(layers []nn.NamedLayer) (Config, error) {
	cfg = cfg.copied()
	if len(layers) == 0 {
		return cfg, errors.New("pipe: the model has no layers; Add some before it is cut")
	}
	if cfg.Plan != nil {
		var err error
		if cfg, err = cfg.planned(); err != nil {
			return cfg, err
		}
	}
	if cfg.Balance == nil {
		cfg.Balance = []int{len(layers)}
	}
	cfg.Checkpoint = Checkpoint(cfg.Checkpoint.String())
	for _, check := range []func() error{
		func() error { return arg.Balance("pipe", cfg.Balance, len(layers)) },
		cfg.checkReplicas,
		cfg.checkDevices,
		cfg.checkGroup,
		cfg.checkAvailable,
		func() error { return arg.AtLeast("pipe", "Chunks", cfg.Chunks, 0) },
		func() (err error) { cfg.policies, err = cfg.Checkpoint.Stages(len(cfg.Balance)); return err },
		cfg.checkBudget,
		func() error { return arg.Between("pipe", "Threads", cfg.Threads, 0, torch.MaxThreads) },
	} {
		if err := check(); err != nil {
			return cfg, err
		}
	}
	cfg.Chunks, cfg.Threads = max(cfg.Chunks, 1), max(cfg.Threads, 1)
	return cfg, cfg.checkSchedule()
}

// checkSchedule has the schedule make a program, which must run.
func (cfg *Config) checkSchedule() error {
	if cfg.Schedule == nil {
		if cfg.Schedule = schedule.GPipe; cfg.Replicas > 1 {
			cfg.Schedule = reducing(schedule.GPipe)
		}
		return nil
	}
	worker, _ := cfg.workers()
	p, err := cfg.Schedule.Make(schedule.Config{Stages: len(worker), MicroBatches: cfg.Chunks, Worker: worker,
		Recompute: func(stage, microBatch int) bool {
			return stage < len(worker) && (cfg.policies[stage] == Optimal || plan.Policy(cfg.policies[stage]).Recomputes(microBatch))
		}})
	value := unquoted(fmt.Sprintf("for %d stages on workers %v and %d micro-batches", len(worker), worker, cfg.Chunks))
	switch {
	case err != nil:
		return refuse("Schedule", value, err.Error(), "want a schedule for these, or other stages, devices or chunks")
	case p.Reduces():
		return refuse("Schedule", value, reduces, withoutReduce)
	case cfg.Replicas > 1:
		cfg.Schedule = reducing(cfg.Schedule)
	}
	return nil
}

// What is wrong with a program that has reductions, and what to do about it.
const (
	reduces       = "its program reduces gradients over replicas, and a pipe is one"
	withoutReduce = "want one without reductions (schedule.Program.WithoutReduce)"
)

// unquoted is the value of a ConfigError that is not quoted.
type unquoted string

func refuse(field string, value any, problem, remedy string) error {
	return &ConfigError{Of: "pipe", Field: field, Value: value, Problem: problem, Remedy: remedy}
}

// checkDevices gives each stage its device.
func (cfg *Config) checkDevices() error {
	if cfg.Devices == nil {
		_, replica := cfg.replicas()
		for i, n := 0, len(cfg.Balance); i < n; i++ {
			cfg.Devices = append(cfg.Devices, torch.CPU(replica*n+i))
		}
	}
	if len(cfg.Devices) < len(cfg.Balance) {
		return refuse("Devices", cfg.Devices, fmt.Sprintf("%d for %d stages", len(cfg.Devices), len(cfg.Balance)),
			"want one for each stage; the same one may serve several")
	}
	cfg.Devices = cfg.Devices[:len(cfg.Balance)]
	for _, d := range cfg.Devices {
		if d.Index < 0 || d.Kind == torch.KindCPU && d.Index >= torch.MaxCPU {
			return refuse("Devices", cfg.Devices, fmt.Sprintf("there is no %v", d), fmt.Sprintf("want an index from 0 to %d", torch.MaxCPU-1))
		}
	}
	return nil
}

// checkAvailable checks that this process can use the devices of its stages.
func (cfg *Config) checkAvailable() error {
	for i, d := range cfg.Devices {
		if !cfg.here(i) {
			continue
		}
		if err := d.Usable(); err != nil {
			return refuse("Devices", cfg.Devices, err.Error(), "want cpu:0, cpu:1, ...")
		}
	}
	return nil
}

// Checkpoint is a policy of recomputation. It says for which micro-batches a stage keeps only its
// input in forward and recomputes the rest before backward. It is one policy for all stages, or a
// list with one for each, such as "always,never". The command's --checkpoint takes the same text.
// The zero value is ExceptLast.
type Checkpoint string

const (
	// ExceptLast recomputes every micro-batch except the one whose backward comes first, because it
	// would be recomputed at once. In ascending order that is micro-batch 0. The micro-batches that
	// the batch really has count: with one, nothing is recomputed.
	ExceptLast = Checkpoint(plan.ExceptLast)
	// Never keeps everything and recomputes nothing.
	Never = Checkpoint(plan.Never)
	// Always recomputes every micro-batch.
	Always = Checkpoint(plan.Always)
	// Optimal chooses for each layer and micro-batch what to keep and what to recompute, so that a
	// step is shortest within a number of bytes (Config.Budget). The first step with batches of a
	// new size measures the layers and plans; see Pipe.Plan.
	Optimal = Checkpoint(plan.Optimal)
)

// PerStage makes a list with a policy for each stage.
func PerStage(policies ...Checkpoint) Checkpoint {
	words := make([]string, len(policies))
	for i, k := range policies {
		words[i] = k.String()
	}
	return Checkpoint(strings.Join(words, ","))
}

// String is the text of the policy or list.
func (k Checkpoint) String() string {
	if k == "" {
		return string(ExceptLast)
	}
	return string(k)
}

// Stages lists the policies of stages 0 to stages-1. It fails with a *ConfigError if a word is no
// policy, or a list has another length.
func (k Checkpoint) Stages(stages int) ([]Checkpoint, error) {
	var out []Checkpoint
	for _, word := range strings.Split(k.String(), ",") {
		if !slices.Contains(plan.Policies, plan.Policy(word)) {
			return nil, refuse("Checkpoint", k.String(), fmt.Sprintf("%q is no policy", word),
				arg.Meant(word, []string{string(Never), string(ExceptLast), string(Always), string(Optimal)})+"want never, except_last, always or optimal, or a list with one for each stage")
		}
		out = append(out, Checkpoint(word))
	}
	switch len(out) {
	case 1:
		return slices.Repeat(out, max(stages, 0)), nil
	case stages:
		return out, nil
	}
	return nil, refuse("Checkpoint", k.String(), fmt.Sprintf("%d policies for %d stages", len(out), stages), "want one for each stage, or one for all")
}

// checkBudget checks Budget and what else the policy Optimal asks for.
func (cfg *Config) checkBudget() error {
	if !slices.Contains(cfg.policies, Optimal) {
		if cfg.Budget != nil {
			return refuse("Budget", cfg.Budget, "the policy "+string(Optimal)+" alone has a budget",
				"want Checkpoint Optimal with it, or limits of the devices (torch.Device.SetLimit)")
		}
		return nil
	}
	switch n := len(cfg.Budget); {
	case n == 0:
		cfg.Budget = make([]int64, len(cfg.Balance))
	case n == 1:
		cfg.Budget = slices.Repeat(cfg.Budget, len(cfg.Balance))
	case n != len(cfg.Balance):
		return refuse("Budget", cfg.Budget, fmt.Sprintf("%d numbers of bytes for %d stages", n, len(cfg.Balance)),
			"want one for each stage, or one for all")
	}
	for i, n := range cfg.Budget {
		if n < 0 {
			return refuse("Budget", cfg.Budget, fmt.Sprintf("stage %d has %d bytes", i, n), "want at least 1, or 0 for none")
		}
	}
	worker, _ := cfg.workers()
	for i, d := range cfg.Devices {
		if first := slices.Index(worker, worker[i]); (cfg.policies[first] == Optimal) != (cfg.policies[i] == Optimal) {
			return refuse("Checkpoint", cfg.Checkpoint.String(), fmt.Sprintf("stages %d and %d share %v, whose memory is planned as one", first, i, d),
				"want optimal for all stages of a device, or for none")
		}
	}
	return nil
}

// refusePlan is a ConfigError about Config.Plan.
func (cfg Config) refusePlan(problem, remedy string) error {
	return refuse("Plan", unquoted(fmt.Sprintf("for %d stages and %d micro-batches", len(cfg.Plan.Stages), cfg.Plan.MicroBatches())), problem, remedy)
}

// planned is the configuration with the settings of its plan.
func (cfg Config) planned() (Config, error) {
	const leaveOut = "leave Balance, Checkpoint, Budget and Schedule out"
	if err := cfg.Plan.Check(); err != nil {
		return cfg, cfg.refusePlan(err.Error(), "want one that planner.Solve or planner.Parse returned, unchanged")
	}
	if cfg.Plan.Program.Reduces() && cfg.Replicas <= 1 {
		return cfg, cfg.refusePlan(reduces, withoutReduce)
	}
	if cfg.Balance != nil || cfg.Checkpoint != "" || cfg.Budget != nil || cfg.Schedule != nil {
		return cfg, cfg.refusePlan("the configuration says what the plan says", leaveOut)
	}
	if n := cfg.Plan.MicroBatches(); cfg.Chunks > n {
		return cfg, refuse("Chunks", cfg.Chunks, "the plan has fewer micro-batches", fmt.Sprintf("want at most %d", n))
	} else if cfg.Chunks == 0 {
		cfg.Chunks = n
	}
	var policies []Checkpoint
	var devices []torch.Device
	var ranks []int
	for i, s := range cfg.Plan.Stages {
		device := cfg.Plan.Devices[s.Device]
		d, rank, err := parseDevice(device.Name)
		if err != nil && cfg.Devices == nil {
			return cfg, cfg.refusePlan(fmt.Sprintf("stage %d: %v", i, err), "want a device of this machine, such as cpu:0")
		}
		cfg.Balance, devices, policies = append(cfg.Balance, s.Layers), append(devices, d), append(policies, Checkpoint(s.Policy))
		if rank >= 0 {
			ranks = append(ranks, rank)
		}
		cfg.Budget = append(cfg.Budget, device.Limit)
	}
	if cfg.Devices == nil {
		cfg.Devices = devices
		if cfg.Ranks == nil && len(ranks) == len(devices) {
			cfg.Ranks = ranks
		}
	}
	cfg.Checkpoint = PerStage(policies...)
	if !slices.Contains(policies, Optimal) {
		cfg.Budget = nil
	}
	return cfg, nil
}
