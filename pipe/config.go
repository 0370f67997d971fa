package pipe

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"penstock.example/group"
	"penstock.example/internal/arg"
	"penstock.example/internal/system"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/plan"
	"penstock.example/profile"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// Config says how a model is cut and run. With more than one stage it needs a Balance.
type Config struct {
	// Balance is the number of the model's flattened layers in each stage. Nil is one stage.
	Balance []int
	// Devices gives each stage its device, in the process that has the stage (Ranks). Stages on one
	// device share its worker. Nil is cpu:0, cpu:1, ..., which goes on from replica to replica.
	Devices []torch.Device
	// Chunks is the number of micro-batches asked for; a batch with fewer rows has fewer. 0 is 1.
	Chunks int
	// Checkpoint is the policy of all stages, or a list with one for each. "" is ExceptLast.
	Checkpoint Checkpoint
	// Budget is for the policy Optimal: the most bytes live on the device of each stage, or one number for
	// all. It limits devices while the pipe is open. Nil or 0 is the device's own limit
	// (torch.Device.SetLimit). Without a limit nothing is recomputed.
	Budget []int64
	// Optimizer will update the model. The policy Optimal leaves memory for its state. Nil is none.
	Optimizer optim.Optimizer
	// Plan is an earlier plan, which the pipe runs as it is, with its Balance, Checkpoint, Budget and
	// Schedule, and its devices unless Devices has others. A batch with fewer micro-batches runs the part
	// of the plan for them. Nil lets the pipe plan.
	Plan *plan.Plan
	// Profile is for the policy Optimal: a measurement of the model with the same loss and rows of a
	// micro-batch, which is not repeated. Nil is none.
	Profile *profile.Profile
	// Schedule makes the programs that the workers run. Nil is schedule.GPipe. Forward and Backward need
	// one whose workers end their forwards before their first backward, such as GPipe's.
	Schedule schedule.Generator
	// DeferredBatchNorm moves the running statistics of batch norms once for each mini-batch, by
	// the mean and the unbiased variance of all its rows; see nn.Deferred.
	DeferredBatchNorm bool
	// Autocast runs forwards and recomputations in bfloat16 where that is safe; see torch.Options.
	Autocast torch.Autocast
	// Threads is the number of intra-op threads of each worker, on which sums depend. 0 is 1.
	Threads int
	// Cores binds the worker of the i-th distinct device to a set of cores. Nil binds none.
	Cores [][]int
	// Seed is the root of initial weights and of all randomness.
	Seed uint64
	// Group is the processes that the stages are in; see Pipe. The caller closes it after the pipe. Nil is
	// this process alone.
	Group *group.Group
	// Ranks is the rank in Group of the process of each stage. Every process needs a stage. Nil is
	// DefaultRanks.
	Ranks []int
	// Replicas is how many times Group has the pipeline. Each replica trains on rows of its own, and a
	// step sums the gradients over the replicas. Ranks count from the first member of a replica. Replicas
	// in one process have models and devices of their own. 0 is 1.
	Replicas int
	// Record makes every Step and Infer return a timeline.
	Record bool

	policies []Checkpoint // by stage
	lanes    []int        // in tests, by stage: a device has a worker for each lane
}

// MaxThreads is the most intra-op threads that a worker may have.
const MaxThreads = system.MaxThreads

// ConfigError is a setting of a Config that New and Open refuse.
type ConfigError = arg.ConfigError

// Sentinel errors of a Pipe.
var (
	ErrClosed    = errors.New("pipe: closed")
	ErrNotPlaced = errors.New("pipe: the model was not placed yet; call Place first")
	ErrNested    = errors.New("pipe: used from within itself") // by a layer, a loss or an update; see Pipe
	// ErrAccumulating is the error of an update while each replica has gradients of its own.
	ErrAccumulating = errors.New("pipe: the gradients are not summed over the replicas yet; " +
		"the last batch before an update is one without Accumulate")
)

func (cfg Config) copied() Config {
	for _, list := range []*[]int{&cfg.Balance, &cfg.Ranks, &cfg.lanes} {
		*list = slices.Clone(*list)
	}
	cfg.Devices, cfg.policies = slices.Clone(cfg.Devices), slices.Clone(cfg.policies)
	cfg.Cores, cfg.Budget = slices.Clone(cfg.Cores), slices.Clone(cfg.Budget)
	return cfg
}

// Check returns a *ConfigError if the configuration does not fit the model. It allocates nothing.
func (cfg Config) Check(model *nn.Sequential) error {
	_, err := cfg.resolved(model.Layers())
	return err
}

func (cfg Config) resolved(layers []nn.NamedLayer) (Config, error) {
	cfg = cfg.copied()
	if len(layers) == 0 {
		return cfg, errors.New("pipe: the model has no layers; Add some before it is cut")
	}
	err := cfg.takePlan()
	if cfg.Balance == nil {
		cfg.Balance = []int{len(layers)}
	}
	for _, check := range []func() error{
		func() error { return arg.Balance("pipe", cfg.Balance, len(layers)) },
		cfg.checkProcesses,
		func() error { return arg.AtLeast("pipe", "Chunks", cfg.Chunks, 0) },
		func() error { return arg.Between("pipe", "Threads", cfg.Threads, 0, system.MaxThreads) },
		func() (err error) { cfg.policies, err = cfg.Checkpoint.Stages(len(cfg.Balance)); return err },
		cfg.checkBudget,
		cfg.checkSchedule,
	} {
		if err == nil {
			err = check()
		}
	}
	return cfg, err
}

// checkSchedule has the schedule make a program, which must run.
func (cfg *Config) checkSchedule() error {
	cfg.Checkpoint = Checkpoint(cfg.Checkpoint.String())
	cfg.Chunks, cfg.Threads = max(cfg.Chunks, 1), max(cfg.Threads, 1)
	worker, _ := cfg.workers()
	if cfg.Schedule == nil {
		cfg.Schedule = schedule.GPipe
	} else if p, err := cfg.Schedule.Make(schedule.Config{Stages: len(worker), MicroBatches: cfg.Chunks,
		Worker: worker, Recompute: func(stage, microBatch int) bool {
			return stage < len(worker) &&
				(cfg.policies[stage] == Optimal || plan.Policy(cfg.policies[stage]).Recomputes(microBatch))
		}}); err != nil || p.Reduces() {
		value := unquoted(fmt.Sprintf("for %d stages on workers %v and %d micro-batches", len(worker), worker,
			cfg.Chunks))
		if err != nil {
			return refuse("Schedule", value, err.Error(),
				"want a schedule for these, or other stages, devices or chunks")
		}
		return refuse("Schedule", value, reduces, withoutReduce)
	}
	if cfg.Plan != nil {
		for w, actions := range cfg.Plan.Program.Workers {
			if slices.ContainsFunc(actions, func(a schedule.Action) bool { return worker[a.Stage] != w }) {
				return cfg.refusePlan(fmt.Sprintf("its worker %d has stages of other devices", w),
					"want one worker for each device, numbered in the order of stages")
			}
		}
	}
	if cfg.Replicas > 1 {
		cfg.Schedule = reducing(cfg.Schedule)
	}
	return nil
}

// The problem and the remedy of a program that has reductions.
const (
	reduces       = "its program reduces gradients over replicas, and a pipe is one"
	withoutReduce = "want one without reductions (schedule.Program.WithoutReduce)"
)

// unquoted is the value of a ConfigError that is not quoted.
type unquoted string

func refuse(field string, value any, problem, remedy string) error {
	return &ConfigError{Of: "pipe", Field: field, Value: value, Problem: problem, Remedy: remedy}
}

// checkProcesses checks that the members of the group can be shared out over replicas and stages. It gives
// each stage its device and rank.
func (cfg *Config) checkProcesses() error {
	n, members := max(cfg.Replicas, 1), 1
	if cfg.Group != nil {
		members = cfg.Group.Size()
	}
	stages, size := len(cfg.Balance), members/n
	switch {
	case cfg.Group == nil && n > 1:
		return refuse("Replicas", cfg.Replicas, "there is no Group",
			"want one whose members have all replicas: of group.Join, or of group.Local within this process")
	case cfg.Replicas < 0 || members%n != 0:
		return refuse("Replicas", cfg.Replicas, fmt.Sprintf("the group has %d members", members),
			"want a number of members that the replicas share out evenly")
	case cfg.Group == nil && cfg.Ranks != nil:
		return refuse("Ranks", cfg.Ranks, "there is no Group",
			"want Ranks with a Group of several processes, or neither")
	}
	if cfg.Devices == nil {
		_, replica := cfg.replicas()
		for i := range stages {
			cfg.Devices = append(cfg.Devices, torch.CPU(replica*stages+i))
		}
	}
	if len(cfg.Devices) < stages {
		return refuse("Devices", cfg.Devices, fmt.Sprintf("%d for %d stages", len(cfg.Devices), stages),
			"want one for each stage; the same one may serve several")
	}
	cfg.Devices = cfg.Devices[:stages]
	if cfg.Group != nil {
		if cfg.Ranks == nil {
			cfg.Ranks = DefaultRanks(cfg.Devices, size)
		}
		distinct := slices.Compact(slices.Sorted(slices.Values(cfg.Ranks)))
		if len(cfg.Ranks) != stages || len(distinct) != size || distinct[0] != 0 ||
			distinct[size-1] != size-1 {
			return refuse("Ranks", cfg.Ranks,
				fmt.Sprintf("a replica has %d stages and %d processes", stages, size),
				fmt.Sprintf("want a rank from 0 to %d for each stage, and a stage for each rank", size-1))
		}
	}
	for i, d := range cfg.Devices {
		if err := d.Usable(); err != nil && cfg.here(i) {
			return refuse("Devices", cfg.Devices, err.Error(), "want cpu:0, cpu:1, ...")
		}
	}
	return nil
}

// Checkpoint is a policy of recomputation: for which micro-batches a stage keeps only its input in forward
// and recomputes the rest before backward. It is one policy for all stages, or a list with one for each,
// such as "always,never".
type Checkpoint string

const (
	// ExceptLast recomputes every micro-batch except the first to go backward, micro-batch 0.
	ExceptLast = Checkpoint(plan.ExceptLast)
	// Never recomputes nothing.
	Never = Checkpoint(plan.Never)
	// Always recomputes every micro-batch.
	Always = Checkpoint(plan.Always)
	// Optimal keeps or recomputes each layer of each micro-batch so that a step is shortest within
	// Config.Budget. The first step with batches of a new size measures the layers and plans.
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

// Stages lists the policies of stages 0 to stages-1. It fails with a *ConfigError.
func (k Checkpoint) Stages(stages int) ([]Checkpoint, error) {
	var out []Checkpoint
	for _, word := range strings.Split(k.String(), ",") {
		if !slices.Contains(plan.Policies, plan.Policy(word)) {
			return nil, refuse("Checkpoint", k.String(), fmt.Sprintf("%q is no policy", word),
				arg.Meant(word, []string{string(Never), string(ExceptLast), string(Always), string(Optimal)})+
					"want never, except_last, always or optimal, or a list with one for each stage")
		}
		out = append(out, Checkpoint(word))
	}
	switch len(out) {
	case 1:
		return slices.Repeat(out, max(stages, 0)), nil
	case stages:
		return out, nil
	}
	return nil, refuse("Checkpoint", k.String(), fmt.Sprintf("%d policies for %d stages", len(out), stages),
		"want one for each stage, or one for all")
}

func (cfg *Config) checkBudget() error {
	if !slices.Contains(cfg.policies, Optimal) {
		if cfg.Budget != nil {
			return refuse("Budget", cfg.Budget, "the policy "+string(Optimal)+" alone has a budget",
				"want Checkpoint Optimal with it, or limits of the devices (torch.Device.SetLimit)")
		}
		return nil
	}
	switch n := len(cfg.Balance); len(cfg.Budget) {
	case 0:
		cfg.Budget = make([]int64, n)
	case n:
	case 1:
		cfg.Budget = slices.Repeat(cfg.Budget, n)
	default:
		return refuse("Budget", cfg.Budget,
			fmt.Sprintf("%d numbers of bytes for %d stages", len(cfg.Budget), n),
			"want one for each stage, or one for all")
	}
	if i := slices.IndexFunc(cfg.Budget, func(n int64) bool { return n < 0 }); i >= 0 {
		return refuse("Budget", cfg.Budget, fmt.Sprintf("stage %d has %d bytes", i, cfg.Budget[i]),
			"want at least 1, or 0 for none")
	}
	worker, _ := cfg.workers()
	for i, d := range cfg.Devices {
		first := slices.Index(worker, worker[i])
		if (cfg.policies[first] == Optimal) != (cfg.policies[i] == Optimal) {
			return refuse("Checkpoint", cfg.Checkpoint.String(),
				fmt.Sprintf("stages %d and %d share %v, whose memory is planned as one", first, i, d),
				"want optimal for all stages of a device, or for none")
		}
	}
	return nil
}

func (cfg *Config) refusePlan(problem, remedy string) error {
	return refuse("Plan", unquoted(fmt.Sprintf("for %d stages and %d micro-batches", len(cfg.Plan.Stages),
		cfg.Plan.MicroBatches())), problem, remedy)
}

func (cfg *Config) takePlan() error {
	plan := cfg.Plan
	if plan == nil {
		return nil
	}
	if err := plan.Check(); err != nil {
		return cfg.refusePlan(err.Error(), "want one that plan.Solve or plan.Parse returned, unchanged")
	}
	switch n := plan.MicroBatches(); {
	case plan.Program.Reduces() && cfg.Replicas <= 1:
		return cfg.refusePlan(reduces, withoutReduce)
	case !plan.Program.Reduces() && cfg.Replicas > 1:
		return cfg.refusePlan("it has no sums over replicas",
			"want a plan that a pipe with Replicas has made")
	case cfg.Balance != nil || cfg.Checkpoint != "" || cfg.Budget != nil || cfg.Schedule != nil:
		return cfg.refusePlan("the configuration says what the plan says",
			"leave Balance, Checkpoint, Budget and Schedule out")
	case cfg.Chunks > n:
		return refuse("Chunks", cfg.Chunks, "the plan has fewer micro-batches",
			fmt.Sprintf("want at most %d", n))
	case cfg.Chunks == 0:
		cfg.Chunks = n
	}
	var policies []Checkpoint
	var devices []torch.Device
	var ranks []int
	for i, s := range plan.Stages {
		device := plan.Devices[s.Device]
		d, rank, err := parseDevice(device.Name)
		if err != nil && cfg.Devices == nil {
			return cfg.refusePlan(fmt.Sprintf("stage %d: %v", i, err),
				"want a device of this machine, such as cpu:0")
		}
		cfg.Balance, cfg.Budget = append(cfg.Balance, s.Layers), append(cfg.Budget, device.Limit)
		policies, devices = append(policies, Checkpoint(s.Policy)), append(devices, d)
		if rank >= 0 {
			ranks = append(ranks, rank)
		}
	}
	if cfg.Devices == nil {
		cfg.Devices = devices
		if cfg.Ranks == nil && len(ranks) == len(devices) {
			cfg.Ranks = ranks
		}
	}
	if cfg.Checkpoint = PerStage(policies...); !slices.Contains(policies, Optimal) {
		cfg.Budget = nil
	}
	return nil
}
