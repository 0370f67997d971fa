package examples

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"penstock.example/autoremat"
	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/planner"
	"penstock.example/planner/search"
	"penstock.example/profile"
	"penstock.example/remat"
	"penstock.example/remat/baselines"
	"penstock.example/remat/explain"
	"penstock.example/remat/solver"
	"penstock.example/report"
	"penstock.example/safetensors"
	"penstock.example/schedule"
	"penstock.example/segment"
	"penstock.example/tokenizer"
	"penstock.example/torch"
	"penstock.example/trace"
	"penstock.example/train"
)

// given is what is given in the place of what is not nil.
type given struct {
	ctx    context.Context
	c      *torch.Ctx
	n      *nn.Ctx
	x      *torch.Tensor
	model  *nn.Sequential
	loss   nn.Loss
	pipe   *pipe.Pipe
	run    *pipe.Run
	remat  *autoremat.Module
	sgd    optim.Optimizer
	set    data.Dataset
	loader *data.Loader
	chain  remat.Chain
	plan   remat.Plan
}

func (g given) solve(context.Context, int64) (remat.Plan, error) { return g.plan, nil }

func (g given) batch() pipe.Batch { return pipe.Batch{Input: pipe.Rows(g.x), Target: pipe.Rows(g.x)} }

func (g given) loop(change func(l *train.Loop)) *train.Loop {
	l := &train.Loop{Pipe: g.pipe, Optimizer: g.sgd, Loss: g.loss, Loader: g.loader, Steps: 1}
	change(l)
	return l
}

// none is a loss that is a nil pointer.
var none *nn.MSELoss

// nils has a call for every argument of a public function that must not be nil: package, type of a method, function, argument. What each says has to contain the text.
func nils(g given) map[string]struct {
	call func() error
	want string
} {
	var ctx context.Context
	type row = struct {
		call func() error
		want string
	}
	panics := func(f func()) func() error { return func() error { f(); return nil } }
	discard := func(_ any, err error) error { return err }
	const background = "the context is nil; want context.Background()"
	return map[string]row{
		"nn.NewCtx.t":               {panics(func() { nn.NewCtx(nil, nn.Config{}) }), "nn: NewCtx: the torch.Ctx is nil; want one of torch.NewCtx"},
		"nn.Ctx.Fork.t":             {panics(func() { g.n.Fork(nil, nn.Fork{}) }), "nn: Fork: the torch.Ctx is nil"},
		"nn.Ctx.Checkpoint.f":       {panics(func() { g.n.Checkpoint(nil, g.x) }), "nn: Checkpoint: the function is nil"},
		"nn.Ctx.Run.x":              {panics(func() { g.n.Run(nil, nn.NewIdentity()) }), "must return tensors that exist; it returned none"},
		"nn.Ctx.Run.layers":         {panics(func() { g.n.Run(g.x, nil) }), "Run: a layer is nil"},
		"nn.Ctx.RunNamed.l":         {panics(func() { g.n.RunNamed(nn.NamedLayer{Name: "a"}, []*torch.Tensor{g.x}) }), "Run: a layer is nil"},
		"nn.Checkpointed.l":         {panics(func() { nn.Checkpointed(nil) }), "nn: Checkpointed: the layer is nil; want an nn.Layer"},
		"nn.Tuple.m":                {panics(func() { nn.Tuple(nil, g.model.ForwardTuple) }), "nn: Tuple: the module is nil"},
		"nn.Tuple.forward":          {panics(func() { nn.Tuple(g.model, nil) }), "nn: Tuple: the function is nil"},
		"nn.NewSequential.layers":   {panics(func() { nn.NewSequential(nn.NewTanh(), nil) }), `nn: Child: the module "1" is nil`},
		"nn.Sequential.Add.l":       {panics(func() { nn.NewSequential().Add("a", (*nn.Linear)(nil)) }), `nn: Child: the module "a" is nil`},
		"nn.Base.Child.m":           {panics(func() { (&nn.Base{}).Child("a", nil) }), `nn: Child: the module "a" is nil`},
		"nn.Base.Param.init":        {panics(func() { (&nn.Base{}).Param("w", nil, 2) }), `nn: the initialiser of the parameter "w" is nil`},
		"nn.Base.Buffer.init":       {panics(func() { (&nn.Base{}).Buffer("w", torch.Float32, nil, 2) }), `nn: the initialiser of the parameter "w" is nil`},
		"nn.Base.Share.p":           {panics(func() { (&nn.Base{}).Share("w", nil) }), "nn: Share: the parameter is nil"},
		"nn.Param.SetInit.init":     {panics(func() { nn.Params(g.model)[0].SetInit(nil) }), "nn: SetInit: the initialiser is nil"},
		"nn.Param.SetTensor.t":      {panics(func() { nn.Params(g.model)[0].SetTensor(nil) }), "nn: SetTensor: the tensor is nil"},
		"nn.NewLinearShared.weight": {panics(func() { nn.NewLinearShared(nil, true) }), "nn: NewLinearShared: the weight is nil"},
		"nn.Materialise.c":          {panics(func() { nn.Materialise(nil, nil, 1) }), "nn: Materialise: the torch.Ctx is nil"},
		"nn.Convert.c":              {panics(func() { nn.Convert(nil, nil, torch.Float64) }), "nn: Convert: the torch.Ctx is nil"},
		"nn.Free.m":                 {panics(func() { nn.Free(nil) }), "is nil; want a model"},
		"nn.ZeroGrads.m":            {panics(func() { nn.ZeroGrads((*nn.Sequential)(nil)) }), "is nil; want a model"},
		"nn.TrainOnly.m":            {func() error { return nn.TrainOnly(nil, "fc") }, "nn: TrainOnly: the model is nil; want one with the layers"},
		"nn.Freeze.m":               {panics(func() { nn.Freeze(nil) }), "is nil; want a model"},
		"nn.Unfreeze.m":             {panics(func() { nn.Unfreeze(nil) }), "is nil; want a model"},
		"nn.Eval.m":                 {panics(func() { nn.Eval(nil) }), "nn: Eval or Train: the module is nil"},
		"nn.Train.m":                {panics(func() { nn.Train(nil) }), "nn: Eval or Train: the module is nil"},
		"nn.ModesOf.m":              {panics(func() { nn.ModesOf(nil) }), "nn: ModesOf: the module is nil"},
		"nn.Sequential.Replace.l":   {panics(func() { nn.NewSequential(nn.NewTanh()).Replace("0", nil) }), `nn: Child: the module "0" is nil`},
		"nn.Summary.m":              {panics(func() { nn.Summary(nil) }), "nn: Summary: the module is nil; want a model"},
		"nn.State.m":                {panics(func() { nn.State(nil) }), "is nil; want a model"},
		"nn.Shared.m":               {panics(func() { nn.Shared(nil) }), "is nil; want a model"},
		"nn.SharedBeyond.m":         {panics(func() { nn.SharedBeyond(nil) }), "is nil; want a model"},
		"nn.Params.m":               {panics(func() { nn.Params(nil) }), "is nil; want a model"},
		"nn.Buffers.m":              {panics(func() { nn.Buffers(nil) }), "is nil; want a model"},
		"nn.Count.m":                {panics(func() { nn.Count(nil) }), "is nil; want a model"},
		"nn.Save.m":                 {func() error { return nn.Save(filepath.Join("there", "is", "none"), nil) }, "nn: Save: the model is nil"},
		"nn.LoadWeights.m": {func() error {
			_, err := nn.LoadWeights(g.c, "none", nil, nn.WeightsConfig{})
			return err
		}, "nn: LoadWeights: the model is nil"},
		"nn.LoadWeights.c": {func() error {
			_, err := nn.LoadWeights(nil, "none", g.model, nn.WeightsConfig{})
			return err
		}, "nn: LoadWeights: the torch.Ctx is nil"},
		"nn.CheckWeights.m": {func() error {
			_, err := nn.CheckWeights("none", nil, nn.WeightsConfig{})
			return err
		}, "nn: CheckWeights: the model is nil"},
		"nn.Load.m":                    {func() error { return nn.Load(g.c, "none", nil) }, "nn: Load: the model is nil"},
		"nn.Load.c":                    {func() error { return nn.Load(nil, "none", g.model) }, "nn: Load: the torch.Ctx is nil"},
		"nn.VerifySkips.model":         {func() error { return nn.VerifySkips(nil) }, "nn: VerifySkips: the model is nil"},
		"nn.Deferred.Commit.c":         {panics(func() { nn.NewDeferred().Commit(nil) }), "nn: Commit: the nn.Ctx is nil"},
		"nn.TupleLoss.l":               {panics(func() { nn.TupleLoss(nil, nil) }), "nn: TupleLoss: what says how rows are combined is nil"},
		"nn.TupleLoss.forward":         {panics(func() { nn.TupleLoss(nn.MSE(), nil) }), "nn: TupleLoss: the function is nil"},
		"nn.RunLoss.c":                 {panics(func() { nn.RunLoss(nil, g.loss, nil, nil) }), "nn: RunLoss: the nn.Ctx is nil"},
		"nn.RunLoss.l":                 {panics(func() { nn.RunLoss(g.n, none, nil, nil) }), "nn: RunLoss: the loss is nil"},
		"nn.ExtraKey.Lookup.c":         {panics(func() { nn.NewExtra[int]("a").Lookup(nil) }), "the nn.Ctx that an extra is looked up in is nil"},
		"nn.ExtraKey.In.c":             {panics(func() { nn.NewExtra[int]("a").In(nil) }), "the nn.Ctx that an extra is looked up in is nil"},
		"nn.SkipStore.Take.c":          {panics(func() { nn.NewSkipStore(nil, 0, 1).Take(nil, nn.SkipKey{}) }), "nn: Take: the nn.Ctx is nil"},
		"nn.OrRestore.m":               {panics(func() { nn.OrRestore(nil, func() {}) }), "is nil; want a model"},
		"nn.OrRestore.f":               {panics(func() { nn.OrRestore(g.model, nil) }), "nn: OrRestore: the function is nil"},
		"nn.SameMemory.a":              {panics(func() { nn.SameMemory(nil, g.x) }), "the tensor is nil"},
		"nn.SameMemory.b":              {panics(func() { nn.SameMemory(g.x, nil) }), "the tensor is nil"},
		"nn.Sequential.Forward.c":      {panics(func() { g.model.Forward(nil, g.x) }), "nn: Forward: the nn.Ctx is nil"},
		"nn.Sequential.Forward.x":      {panics(func() { g.model.Forward(nn.NewCtx(g.c, nn.Config{}), nil) }), "argument 0 (input) wants Tensor, got None"},
		"nn.Sequential.ForwardTuple.c": {panics(func() { g.model.ForwardTuple(nil, nil) }), "nn: Forward: the nn.Ctx is nil"},

		"segment.Execution.Begin.s":       {panics(func() { new(segment.Execution).Begin(nil, contexts) }), "segment: Begin: the segment is nil"},
		"segment.Execution.Begin.context": {panics(func() { new(segment.Execution).Begin(cut(g), nil) }), "segment: Begin: the function that makes contexts is nil"},
		"segment.Execution.Do.c":          {panics(func() { walk(g).Do(nil, remat.Op{}) }), "segment: Do: the torch.Ctx is nil"},
		"segment.Execution.Weight.c":      {panics(func() { walk(g).Weight(nil) }), "segment: Weight: the torch.Ctx is nil"},
		"segment.Execution.Weights.c":     {panics(func() { walk(g).Weights(nil) }), "segment: Weights: the torch.Ctx is nil"},

		"profile.Threads.ctx":    {func() error { return discard(profile.Threads(ctx, g.model, profile.Config{}, nil, g.x)) }, "profile: " + background},
		"profile.Threads.model":  {func() error { return discard(profile.Threads(g.ctx, nil, profile.Config{}, nil, g.x)) }, "profile: Threads: the model is nil; want an nn.Sequential"},
		"profile.Threads.sample": {func() error { return discard(profile.Threads(g.ctx, g.model, profile.Config{}, []int{1}, nil)) }, "profile: tensor 0 of the sample does not exist"},
		"profile.Measure.ctx":    {func() error { return discard(profile.Measure(ctx, g.model, profile.Config{}, g.x)) }, "profile: " + background},
		"profile.Measure.model":  {func() error { return discard(profile.Measure(g.ctx, nil, profile.Config{}, g.x)) }, "profile: the model is nil; want an nn.Sequential"},
		"profile.Measure.sample": {func() error { return discard(profile.Measure(g.ctx, g.model, profile.Config{}, nil)) }, "profile: tensor 0 of the sample does not exist"},

		"autoremat.New.model":             {func() error { return discard(autoremat.New(nil, autoremat.Config{})) }, "autoremat: the model is nil; want an nn.Sequential"},
		"autoremat.Atomic.s":              {panics(func() { autoremat.Atomic(nil) }), "the module is nil"},
		"autoremat.Module.Measure.ctx":    {func() error { return g.remat.Measure(ctx, g.n, autoremat.Sample{Input: []*torch.Tensor{g.x}}) }, "autoremat: " + background},
		"autoremat.Module.Measure.c":      {func() error { return g.remat.Measure(g.ctx, nil, autoremat.Sample{Input: []*torch.Tensor{g.x}}) }, "autoremat: Measure: the nn.Ctx is nil"},
		"autoremat.Module.Solve.ctx":      {func() error { return discard(g.remat.Solve(ctx, 0)) }, "autoremat: " + background},
		"autoremat.Module.SetLimit.ctx":   {func() error { return discard(g.remat.SetLimit(ctx, 1)) }, "autoremat: " + background},
		"autoremat.Module.Run.c":          {func() error { return discard(g.remat.Run(nil, g.x)) }, "autoremat: Run: the nn.Ctx is nil"},
		"autoremat.Module.Run.xs":         {func() error { return discard(g.remat.Run(training(g.c), nil)) }, "input 0 does not exist"},
		"autoremat.Module.Backward.c":     {func() error { return g.remat.Backward(nil, []*torch.Tensor{g.x}, nil) }, "autoremat: Backward: the nn.Ctx is nil"},
		"autoremat.Module.Forward.c":      {panics(func() { g.remat.Forward(nil, g.x) }), "autoremat: Forward: the nn.Ctx is nil"},
		"autoremat.Module.Forward.x":      {panics(func() { g.remat.Forward(training(g.c), nil) }), "input 0 does not exist"},
		"autoremat.Module.ForwardTuple.c": {panics(func() { g.remat.ForwardTuple(nil, nil) }), "autoremat: Forward: the nn.Ctx is nil"},

		"solver.Solve.ctx":        {func() error { return discard(solver.Solve(ctx, g.chain, 0, solver.Options{})) }, "remat: " + background},
		"baselines.Compare.ctx":   {func() error { return discard(baselines.Compare(ctx, nil, g.solve)) }, "remat: " + background},
		"baselines.Compare.solve": {func() error { return discard(baselines.Compare(g.ctx, nil, nil)) }, "remat: Compare: the function that solves is nil"},
		"explain.Explain.ctx":     {func() error { return discard(explain.Explain(ctx, g.chain, g.plan, nil, g.solve)) }, "remat: " + background},
		"explain.Explain.solve":   {func() error { return discard(explain.Explain(g.ctx, g.chain, g.plan, []int64{1}, nil)) }, "remat: Explain: the function that solves is nil"},
		"solver.NewTable.ctx":     {func() error { return discard(solver.NewTable(ctx, g.chain, 0, solver.Options{})) }, "remat: " + background},
		"search.Search.ctx": {func() error {
			return discard(search.Search(ctx, search.Profile{}, search.Machine{}, search.Wishes{}))
		}, "search: " + background},
		"search.Explain.ctx": {func() error {
			return discard(search.Explain(ctx, search.Profile{}, search.Machine{}, search.Wishes{}, nil))
		}, "search: " + background},
		"search.Explain.plan": {func() error {
			return discard(search.Explain(context.Background(), search.Profile{}, search.Machine{}, search.Wishes{}, nil))
		}, "search: the plan is nil; want the best of a Result"},
		"planner.Plan.OverLimits.ctx": {func() error { return discard((&planner.Plan{}).OverLimits(ctx, nil, 1)) }, "planner: " + background},
		"planner.Solve.ctx":           {func() error { return discard(planner.Solve(ctx, planner.Problem{})) }, "planner: " + background},
		"planner.SolveFirst.ctx":      {func() error { return discard(planner.SolveFirst(ctx, planner.Problem{})) }, "planner: " + background},
		"solver.FewestDevice.ctx": {func() error {
			return discard(solver.FewestDevice(ctx, solver.Device{Stages: []solver.Stage{{First: g.chain}}, MicroBatches: 1}, solver.Options{}))
		}, "remat: " + background},
		"solver.SolveDevice.ctx": {func() error {
			return discard(solver.SolveDevice(ctx, solver.Device{Stages: []solver.Stage{{First: g.chain}}, MicroBatches: 1}, solver.Options{}))
		}, "remat: " + background},

		"pipe.New.model":                {func() error { return discard(pipe.New(nil, pipe.Config{})) }, "pipe: the model is nil; want an nn.Sequential"},
		"pipe.Config.Check.model":       {func() error { return pipe.Config{}.Check(nil) }, "pipe: the model is nil; want an nn.Sequential"},
		"pipe.Open.model":               {func() error { return discard(pipe.Open(nil, pipe.Config{})) }, "pipe: the model is nil; want an nn.Sequential"},
		"pipe.Pipe.Step.ctx":            {func() error { return discard(g.pipe.Step(ctx, g.batch(), g.loss)) }, "pipe: " + background},
		"pipe.Pipe.Step.loss":           {func() error { return discard(g.pipe.Step(g.ctx, g.batch(), none)) }, "pipe: Step needs a loss"},
		"pipe.Pipe.PlanFor.ctx":         {func() error { _, err := g.pipe.PlanFor(ctx, g.batch(), g.loss); return err }, "pipe: " + background},
		"pipe.Pipe.Forward.ctx":         {func() error { return discard(g.pipe.Forward(ctx, g.batch())) }, "pipe: " + background},
		"pipe.Pipe.Infer.ctx":           {func() error { return discard(g.pipe.Infer(ctx, g.batch())) }, "pipe: " + background},
		"pipe.Pipe.Convert.ctx":         {func() error { return g.pipe.Convert(ctx, torch.Float64) }, "pipe: " + background},
		"pipe.Pipe.Update.ctx":          {func() error { return g.pipe.Update(ctx, g.sgd) }, "pipe: " + background},
		"pipe.Pipe.Update.o":            {func() error { return g.pipe.Update(g.ctx, nil) }, "pipe: Update: the optimizer is nil"},
		"pipe.Pipe.UpdateClipped.ctx":   {func() error { return discard(g.pipe.UpdateClipped(ctx, g.sgd, 1)) }, "pipe: " + background},
		"pipe.Pipe.UpdateClipped.o":     {func() error { return discard(g.pipe.UpdateClipped(g.ctx, nil, 1)) }, "pipe: Update: the optimizer is nil"},
		"pipe.Pipe.UpdateScaled.ctx":    {func() error { _, _, err := g.pipe.UpdateScaled(ctx, g.sgd, &optim.Scaler{}, 0); return err }, "pipe: " + background},
		"pipe.Pipe.UpdateScaled.o":      {func() error { _, _, err := g.pipe.UpdateScaled(g.ctx, nil, &optim.Scaler{}, 0); return err }, "pipe: Update: the optimizer is nil"},
		"pipe.Pipe.UpdateScaled.s":      {func() error { _, _, err := g.pipe.UpdateScaled(g.ctx, g.sgd, nil, 0); return err }, "pipe: UpdateScaled: the scaler is nil"},
		"pipe.Pipe.OnStages.ctx":        {func() error { return g.pipe.OnStages(ctx, func(int, *torch.Ctx) error { return nil }) }, "pipe: " + background},
		"pipe.Pipe.OnStages.f":          {func() error { return g.pipe.OnStages(g.ctx, nil) }, "pipe: OnStages: the function is nil"},
		"pipe.Run.Backward.ctx":         {func() error { return g.run.Backward(ctx, g.x) }, "pipe: " + background},
		"pipe.Run.BackwardRetained.ctx": {func() error { return g.run.BackwardRetained(ctx, g.x) }, "pipe: " + background},
		"pipe.Run.Backward.grads":       {func() error { return g.run.Backward(g.ctx, nil) }, "pipe: "},
		"pipe.Rows.ts": {func() error {
			return discard(g.pipe.Infer(g.ctx, pipe.Batch{Input: pipe.Rows(nil)}))
		}, "pipe: input 0 is nil; want a tensor"},
		"pipe.NoChunk.ts": {func() error {
			return discard(g.pipe.Infer(g.ctx, pipe.Batch{Input: pipe.NoChunk(nil)}))
		}, "pipe: input 0 is nil; want a tensor"},

		"train.Loop.Run.ctx":           {func() error { return discard(g.loop(func(*train.Loop) {}).Run(ctx)) }, "train: " + background},
		"train.Loop":                   {func() error { return discard((&train.Loop{}).Run(g.ctx)) }, "train: Loop.Pipe is nil; want one of pipe.New"},
		"train.Loop.Optimizer":         {func() error { return discard(g.loop(func(l *train.Loop) { l.Optimizer = nil }).Run(g.ctx)) }, "train: Loop.Optimizer is nil"},
		"train.Loop.Loss":              {func() error { return discard(g.loop(func(l *train.Loop) { l.Loss = none }).Run(g.ctx)) }, "train: Loop.Loss is nil"},
		"train.Loop.Loader":            {func() error { return discard(g.loop(func(l *train.Loop) { l.Loader = nil }).Run(g.ctx)) }, "train: Loop.Loader is nil"},
		"train.Loop.Progress":          {panics(func() { (&train.Loop{}).Progress() }), "train: Loop.Loader is nil"},
		"train.Loop.PlanMemory.ctx":    {func() error { return g.loop(func(*train.Loop) {}).PlanMemory(ctx, g.set, 2) }, "train: " + background},
		"train.Loop.PlanMemory.set":    {func() error { return g.loop(func(*train.Loop) {}).PlanMemory(g.ctx, nil, 2) }, "train: PlanMemory: the data set is nil"},
		"train.Loop.PlanMemory":        {func() error { return (&train.Loop{}).PlanMemory(g.ctx, g.set, 2) }, "train: Loop.Pipe is nil"},
		"train.Every.f":                {panics(func() { train.Every(1, nil) }), "train: Every: the hook is nil"},
		"train.Checkpoint.Check.model": {func() error { return (&train.Checkpoint{}).Check(train.Recipe{}, nil) }, "train: Check: the model is nil"},
		"train.Checkpoint.Merge.write": {func() error { return (&train.Checkpoint{}).Merge(nil) }, "train: Merge: the function is nil"},
		"train.Checkpoint.Restore.p":   {func() error { return (&train.Checkpoint{}).Restore(nil, g.sgd) }, "train: Restore: the pipe is nil"},
		"train.Checkpoint.Restore.o":   {func() error { return (&train.Checkpoint{}).Restore(g.pipe, nil) }, "train: Restore: the optimizer is nil"},
		"train.Store.Save.model": {func() error {
			return discard(train.Store{Dir: "none"}.Save(train.Progress{}, train.Recipe{}, nil, g.sgd))
		}, "train: Save: the model is nil"},
		"train.Store.Save.o": {func() error {
			return discard(train.Store{Dir: "none"}.Save(train.Progress{}, train.Recipe{}, g.model, nil))
		}, "train: Save: the optimizer is nil"},
		"train.ThreadsByTime.ctx":    {func() error { return discard(train.ThreadsByTime(ctx, g.model, g.set, train.ThreadsConfig{})) }, "train: " + background},
		"train.ThreadsByTime.model":  {func() error { return discard(train.ThreadsByTime(g.ctx, nil, g.set, train.ThreadsConfig{})) }, "train: ThreadsByTime: the model is nil"},
		"train.ThreadsByTime.set":    {func() error { return discard(train.ThreadsByTime(g.ctx, g.model, nil, train.ThreadsConfig{})) }, "train: ThreadsByTime: the data set is nil"},
		"train.BalanceByTime.ctx":    {func() error { return discard(train.BalanceByTime(ctx, g.model, g.set, train.BalanceConfig{})) }, "train: " + background},
		"train.BalanceByTime.model":  {func() error { return discard(train.BalanceByTime(g.ctx, nil, g.set, train.BalanceConfig{})) }, "train: BalanceByTime: the model is nil"},
		"train.BalanceByTime.set":    {func() error { return discard(train.BalanceByTime(g.ctx, g.model, nil, train.BalanceConfig{})) }, "train: BalanceByTime: the data set is nil"},
		"train.Agree.ctx":            {func() error { return train.Agree(ctx, group.Local(1)[0], nil) }, "train: " + background},
		"train.Agree.g":              {func() error { return train.Agree(context.Background(), nil, nil) }, "train: Agree: the group is nil; want one of group.Join"},
		"train.Accuracy.ctx":         {func() error { return discard(train.Accuracy(ctx, g.pipe, g.set, 2)) }, "train: " + background},
		"train.Accuracy.p":           {func() error { return discard(train.Accuracy(g.ctx, nil, g.set, 2)) }, "train: Accuracy: the pipe is nil"},
		"train.Accuracy.set":         {func() error { return discard(train.Accuracy(g.ctx, g.pipe, nil, 2)) }, "train: Accuracy: the data set is nil"},
		"train.MeanSquaredError.ctx": {func() error { return discard(train.MeanSquaredError(ctx, g.pipe, g.set, 2)) }, "train: " + background},
		"train.MeanSquaredError.p":   {func() error { return discard(train.MeanSquaredError(g.ctx, nil, g.set, 2)) }, "train: MeanSquaredError: the pipe is nil"},
		"train.MeanSquaredError.set": {func() error { return discard(train.MeanSquaredError(g.ctx, g.pipe, nil, 2)) }, "train: MeanSquaredError: the data set is nil"},
		"train.Evaluate.ctx":         {func() error { return discard(train.Evaluate(ctx, g.pipe, g.set, train.EvaluateConfig{Batch: 2})) }, "train: " + background},
		"train.Evaluate.p":           {func() error { return discard(train.Evaluate(g.ctx, nil, g.set, train.EvaluateConfig{Batch: 2})) }, "train: Evaluate: the pipe is nil"},
		"train.Evaluate.set":         {func() error { return discard(train.Evaluate(g.ctx, g.pipe, nil, train.EvaluateConfig{Batch: 2})) }, "train: Evaluate: the data set is nil"},
		"train.Predict.ctx": {func() error {
			return train.Predict(ctx, g.pipe, g.set, train.EvaluateConfig{Batch: 2}, func(int, []float32) error { return nil })
		}, "train: " + background},
		"train.Predict.p": {func() error {
			return train.Predict(g.ctx, nil, g.set, train.EvaluateConfig{Batch: 2}, func(int, []float32) error { return nil })
		}, "train: Predict: the pipe is nil"},
		"train.Predict.set": {func() error {
			return train.Predict(g.ctx, g.pipe, nil, train.EvaluateConfig{Batch: 2}, func(int, []float32) error { return nil })
		}, "train: Predict: the data set is nil"},
		"train.Predict.each": {func() error { return train.Predict(g.ctx, g.pipe, g.set, train.EvaluateConfig{Batch: 2}, nil) }, "train: Predict: the function is nil"},
		"train.Loop.Validation": {func() error {
			return discard(g.loop(func(l *train.Loop) { l.Validation = &train.Validation{} }).Run(g.ctx))
		}, "train: Validation.Set is nil"},
		"train.Checkpoint.RestoreModel.p": {func() error { return (&train.Checkpoint{}).RestoreModel(nil) }, "train: RestoreModel: the pipe is nil"},
		"data.Join.first":                 {panics(func() { data.Join(nil, g.set) }), "data: Join: the first set is nil"},
		"data.Join.second":                {panics(func() { data.Join(g.set, nil) }), "data: Join: the second set is nil"},
		"data.Inputs.Fill.batch":          {func() error { return new(data.Inputs).Fill(nil, nil) }, "data: Fill: the batch is nil"},
		"train.Fingerprint.set":           {func() error { return discard(train.Fingerprint(nil)) }, "train: Fingerprint: the data set is nil"},
		"train.ParamsSHA256.model":        {panics(func() { train.ParamsSHA256(nil) }), "is nil; want a model"},
		"train.ParamsSHA256In.model":      {func() error { return discard(train.ParamsSHA256In(nil, nil)) }, "train: ParamsSHA256In: the model is nil"},

		"optim.SquaredNorms.c": {panics(func() { optim.SquaredNorms(nil, nil) }), "optim: SquaredNorms: the torch.Ctx is nil"},
		"optim.Scale.c":        {panics(func() { optim.Scale(nil, nil, 2) }), "optim: Scale: the torch.Ctx is nil"},
		"optim.Clip.c":         {func() error { return discard(optim.Clip(nil, nil, 2)) }, "optim: Clip: the torch.Ctx is nil"},
		"optim.Optimizer.Step": {panics(func() { g.sgd.Step(nil, nil) }), "optim: Step or Prepare: the torch.Ctx is nil"},

		"models.NewAuxiliaryLoss.loss": {panics(func() { models.NewAuxiliaryLoss(nil, 1) }), "models: NewAuxiliaryLoss: the loss is nil"},
		"models.Set.o":                 {func() error { return models.Set("mlp", nil, nil) }, "models: Set: the options is nil"},

		"schedule.Check.p":                 {func() error { return schedule.Check(nil, schedule.Limits{}) }, "schedule: Check: the program is nil"},
		"schedule.InFlight.p":              {panics(func() { schedule.InFlight(nil, nil) }), "schedule: InFlight: the program is nil"},
		"schedule.AddReduce.p":             {panics(func() { schedule.AddReduce(nil) }), "schedule: AddReduce: the program is nil"},
		"schedule.Fixed.p":                 {panics(func() { schedule.Fixed(nil) }), "schedule: Fixed: the program is nil"},
		"schedule.Predict.p":               {func() error { _, _, err := schedule.Predict(nil, schedule.Unit); return err }, "schedule: Check: the program is nil"},
		"schedule.Predict.duration":        {func() error { _, _, err := schedule.Predict(&schedule.Program{}, nil); return err }, "schedule: Predict: the function of durations is nil"},
		"schedule.Links.Predict.p":         {func() error { _, _, err := schedule.Links{}.Predict(nil, schedule.Unit); return err }, "schedule: Check: the program is nil"},
		"schedule.Links.Predict.duration":  {func() error { _, _, err := schedule.Links{}.Predict(&schedule.Program{}, nil); return err }, "schedule: Predict: the function of durations is nil"},
		"schedule.Links.Simulate.p":        {func() error { return discard(schedule.Links{}.Simulate(nil, schedule.Unit)) }, "schedule: Check: the program is nil"},
		"schedule.Links.Simulate.duration": {func() error { return discard(schedule.Links{}.Simulate(&schedule.Program{}, nil)) }, "schedule: Simulate: the function of durations is nil"},
		"schedule.Simulate.p":              {func() error { return discard(schedule.Simulate(nil, schedule.Unit)) }, "schedule: Check: the program is nil"},
		"schedule.Simulate.duration":       {func() error { return discard(schedule.Simulate(&schedule.Program{}, nil)) }, "schedule: Simulate: the function of durations is nil"},

		"trace.Read.r":                          {func() error { return discard(trace.Read(nil)) }, "trace: Read: the reader is nil"},
		"report.Write.w":                        {func() error { return report.Write(nil, report.Page{}) }, "report: Write: the writer is nil"},
		"trace.Write.w":                         {func() error { return trace.Write(nil, schedule.Timeline{}, trace.Options{}) }, "trace: Write: the writer is nil"},
		"safetensors.NewFile.source":            {func() error { return discard(safetensors.NewFile(nil, 0)) }, "safetensors: NewFile: the source is nil"},
		"tokenizer.Tokenizer.EncodeParts.yield": {func() error { return new(tokenizer.Tokenizer).EncodeParts(nil, nil) }, "tokenizer: EncodeParts: yield is nil"},
		"safetensors.Write.w":                   {func() error { return safetensors.Write(nil, nil, nil) }, "safetensors: Write: the writer is nil"},

		"data.NewLoader.set":     {func() error { return discard(data.NewLoader(nil, data.LoaderConfig{BatchSize: 1})) }, "data: NewLoader: the data set is nil"},
		"data.Loader.Next.ctx":   {func() error { return discard(g.loader.Next(ctx)) }, "data: " + background},
		"data.DecodeIDX.r":       {func() error { return discard(data.DecodeIDX(nil)) }, "data: DecodeIDX: the reader is nil"},
		"data.DecodeCIFAR10.r":   {func() error { _, _, err := data.DecodeCIFAR10(nil, 1); return err }, "data: DecodeCIFAR10: the reader is nil"},
		"data.Split.set":         {func() error { _, _, err := data.Split(nil, 0.5, 0); return err }, "data: Split: the data set is nil"},
		"data.Set.o":             {func() error { return data.Set("synthetic", nil, nil) }, "data: Set: the options is nil"},
		"data.DecodeNPY.r":       {func() error { return discard(data.DecodeNPY(nil)) }, "data: DecodeNPY: the reader is nil"},
		"data.Arrays.Fill.batch": {func() error { return new(data.Arrays).Fill(nil, nil) }, "data: Fill: the batch is nil"},
		"data.Images.Fill.batch": {func() error { return new(data.Images).Fill(nil, nil) }, "data: Fill: the batch is nil"},
		"data.Text.Fill.batch":   {func() error { return new(data.Text).Fill(nil, nil) }, "data: Fill: the batch is nil"},

		"torch.Try.f":               {panics(func() { torch.Try(nil) }), "torch: Try: the function is nil"},
		"torch.Ctx.NoGrad.f":        {panics(func() { g.c.NoGrad(nil) }), "torch: NoGrad: the function is nil"},
		"torch.Ctx.Checkpoint.f":    {panics(func() { g.c.Checkpoint(nil, nil, false) }), "torch: Checkpoint: the function is nil"},
		"torch.Ctx.Attach.n":        {panics(func() { g.c.Attach(nil, nil, nil) }), "torch: Attach: the node is nil"},
		"torch.From.c":              {panics(func() { torch.From(nil, []float32{1}) }), "torch: the Ctx that is to own the new tensor is nil"},
		"torch.Scalar.c":            {panics(func() { torch.Scalar(nil, float32(1)) }), "torch: the Ctx that is to own the new tensor is nil"},
		"torch.FromBytes.c":         {panics(func() { torch.FromBytes(nil, nil, torch.Float32, []int64{0}) }), "torch: the Ctx that is to own the new tensor is nil"},
		"torch.FromPinned.c":        {panics(func() { torch.FromPinned(nil, []float32{1}) }), "torch: the Ctx that is to own the new tensor is nil"},
		"torch.Values.t":            {panics(func() { torch.Values[float32](nil) }), "the tensor is nil: a gradient or a skip connection that is absent"},
		"torch.Item.t":              {panics(func() { torch.Item[float32](nil) }), "the tensor is nil"},
		"torch.Bytes.t":             {panics(func() { torch.Bytes(nil) }), "the tensor is nil"},
		"torch.Pieces.t":            {panics(func() { torch.Pieces(nil, func([]byte) error { return nil }) }), "the tensor is nil"},
		"torch.Pieces.write":        {func() error { return torch.Pieces(g.x, nil) }, "torch: Pieces: the function is nil"},
		"torch.BytesInto.t":         {panics(func() { torch.BytesInto(nil, nil) }), "the tensor is nil"},
		"torch.SetBytes.t":          {func() error { return torch.SetBytes(nil, nil) }, "the tensor is nil"},
		"torch.Tensor.SameShape.as": {panics(func() { g.x.SameShape(nil) }), "the tensor is nil"},
		"torch.Device.Lend.t":       {panics(func() { torch.CPU(0).Lend(nil) }), "the tensor is nil"},

		"torch.OpenGloo.s":             {func() error { return discard(torch.OpenGloo(nil, "", 0, 1, "", 0)) }, "torch: OpenGloo: the store is nil"},
		"torch.Gloo.Send.t":            {func() error { return discard(new(torch.Gloo).Send(nil, 1, 0)) }, "the tensor is nil"},
		"torch.Gloo.Receive.t":         {func() error { return discard(new(torch.Gloo).Receive(nil, 1, 0)) }, "the tensor is nil"},
		"group.FromEnvironment.getenv": {func() error { _, _, err := group.FromEnvironment(nil); return err }, "group: FromEnvironment: the function is nil; want os.Getenv"},
		"group.Join.ctx":               {func() error { return discard(group.Join(ctx, group.Config{Size: 1})) }, "group: " + background},
		"group.Refuse.ctx":             {func() error { return group.Refuse(ctx, group.Config{Size: 1}, "") }, "group: " + background},
		"group.FromFirst.f":            {func() error { return discard(group.FromFirst[int](context.Background(), nil, "a", nil)) }, "group: FromFirst: the function is nil; want what rank 0 is to do"},
		"group.Meet.ctx":               {func() error { return discard(group.Meet(ctx, group.Local(1)[0], "a", 0, nil)) }, "group: " + background},
		"group.FromFirst.ctx": {func() error {
			return discard(group.FromFirst(ctx, group.Local(1)[0], "a", func() (int, error) { return 0, nil }))
		}, "group: " + background},
		"group.Agree.ctx":        {func() error { return group.Agree(ctx, group.Local(1)[0], "a", nil) }, "group: " + background},
		"group.Group.Gather.ctx": {func() error { return discard(group.Local(1)[0].Gather(ctx, "a", nil)) }, "group: " + background},
		"group.Group.Send.t":     {func() error { return discard(group.Local(2)[0].Send(nil, 1, 0)) }, "group: Send: the tensor is nil"},
		"group.Group.Receive.t":  {func() error { return discard(group.Local(2)[0].Receive(nil, 1, 0)) }, "group: Receive: the tensor is nil"},
		"torch.FileTensor.t":     {panics(func() { torch.FileTensor("a", nil) }), "the tensor is nil"},
	}
}

// fine are arguments that may be nil, and why.
var fine = map[string]string{
	"report.NewCurve.p": "there is no plan", "report.NewStepCurve.p": "there is no plan", "report.Live.ServeHTTP.r": "an http.Handler's request",
	"schedule.Uniform.bytes": "no bytes are counted",
	"train.ParamsSHA256In.g": "one process", "data.NewInputs.t": "text is bytes, or not read",
	"group.Agree.g": "one process", "group.Meet.g": "one process", "group.FromFirst.g": "one process",
	"schedule.Program.Without.drop": "nothing is taken out", "schedule.InFlight.size": "each counts 1",
	"nn.Ctx.Stash.t": "the skip is absent", "nn.Param.Replicate.t": "takes the replica away", "nn.SkipStore.Give.tensors": "the skip is absent",
	"nn.ExtraKey.With.v": "a value of the caller's", "nn.Ctx.Checkpoint.xs": "an input may be absent",
	"segment.Execution.GiveTie.grad": "there is no gradient", "pipe.Pipe.PlanFor.loss": "the loss is not known",
	"pipe.Run.BackwardRetained.grads": "as Backward",
	"torch.Caught.p":                  "what recover returned", "torch.Ctx.Call.args": "None", "torch.Tensor.SetGradOf.grad": "drops the gradient",
	"torch.Ctx.Checkpoint.shared": "none", "torch.Prepared.Split.first": "only gates", "torch.Ctx.Owns.t": "nobody's", "torch.Ctx.Release.keep": "nothing to keep", "torch.Ctx.Keep.t": "nothing to keep", "torch.Ctx.Adopt.t": "nothing to own",
}

// A nil argument is an error, or a panic that names it; never a nil dereference, and never the end of the process.
func TestNilArgumentsAreNamed(t *testing.T) {
	g := prepared(t)
	for name, row := range nils(g) {
		t.Run(name, func(t *testing.T) {
			if err := caught(row.call); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got  %v\nwant %s", err, row.want)
			}
		})
	}
}

// caught is the error that f returns, or the value that it panics with.
func caught(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	return f()
}

// Operators given nil tensors, and methods of a nil tensor, panic with an *Error: libtorch would end the process.
func TestNilTensors(t *testing.T) {
	g := prepared(t)
	var missing *torch.Tensor
	for _, receiver := range []reflect.Value{reflect.ValueOf(g.c), reflect.ValueOf(missing)} {
		for i := range receiver.NumMethod() {
			method, name := receiver.Method(i), receiver.Type().Method(i).Name
			takes := receiver.Type() == reflect.TypeOf(missing) || name != "Attach" && name != "Checkpoint" && name != "Call" &&
				slices.ContainsFunc(slices.Collect(method.Type().Ins()), func(in reflect.Type) bool { return in == reflect.TypeOf(missing) })
			if !takes {
				continue
			}
			err := caught(func() error {
				method.Call(arguments(method.Type()))
				return nil
			})
			if err != nil && strings.Contains(err.Error(), "nil pointer") {
				t.Errorf("%v.%s: %v", receiver.Type(), name, err)
			}
		}
	}
}

// arguments are zero values, and sizes of 1.
func arguments(f reflect.Type) (out []reflect.Value) {
	for i := range f.NumIn() {
		in := f.In(i)
		switch {
		case f.IsVariadic() && i == f.NumIn()-1:
			continue
		case in == reflect.TypeOf([]int64{}):
			out = append(out, reflect.ValueOf([]int64{1}))
		default:
			out = append(out, reflect.Zero(in))
		}
	}
	return out
}

// Every public function that takes a pointer, an interface or a function is in one of the two lists.
func TestNilsAreAllListed(t *testing.T) {
	g := given{}
	rows := nils(g)
	for _, name := range nillable(t, "..") {
		_, listed := rows[name]
		if _, ok := fine[name]; ok == listed {
			t.Errorf("%s: refused as nil is %v, and fine as nil is %v; want one of them", name, listed, ok)
		}
	}
}

func training(c *torch.Ctx) *nn.Ctx {
	c.SetGrad(true)
	return nn.NewCtx(c, nn.Config{Training: true})
}

func walk(g given) *segment.Execution {
	w := &segment.Execution{}
	w.Begin(cut(g), contexts)
	return w
}

func cut(g given) *segment.Segment {
	s, err := segment.New(segment.Config{Layers: g.model.Layers(), Last: g.model.Len()})
	if err != nil {
		panic(err)
	}
	return s
}

func contexts(c *torch.Ctx, _ segment.Run) *nn.Ctx { return nn.NewCtx(c, nn.Config{}) }

// prepared makes what is not nil.
func prepared(t *testing.T) given {
	t.Helper()
	g := given{ctx: context.Background(), loss: nn.MSE(), c: torchtest.New(t, torch.Options{})}
	g.n = nn.NewCtx(g.c, nn.Config{})
	g.x = g.c.Ones(torch.Float32, 2, 4)
	g.model = nn.NewSequential(nn.NewLinear(4, 4))
	fatal := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	var err error
	g.pipe, err = pipe.New(g.model, pipe.Config{})
	fatal(err)
	g.run, err = g.pipe.Forward(g.ctx, pipe.Batch{Input: pipe.Rows(g.x)})
	fatal(err)
	g.remat, err = autoremat.New(g.model, autoremat.Config{})
	fatal(err)
	g.sgd, err = optim.SGD(optim.Config{LR: 1})
	fatal(err)
	g.set, _, err = data.Synthetic{Train: 4, Test: 1, Classes: 2, Height: 2, Width: 2}.Open()
	fatal(err)
	g.loader, err = data.NewLoader(g.set, data.LoaderConfig{BatchSize: 2})
	fatal(err)
	g.chain = remat.Chain{Layers: []remat.Layer{{Name: "a", Forward: 1, Backward: 1, Output: 1, Saved: 1}}}
	g.plan, err = solver.Solve(g.ctx, g.chain, 0, solver.Options{})
	fatal(err)
	t.Cleanup(func() {
		g.loader.Close()
		g.sgd.Close()
		g.remat.Close()
		g.run.Close()
		g.pipe.Close()
		nn.Free(g.model)
	})
	return g
}

// nillable lists the arguments of public functions below root that are pointers, interfaces or functions: package, type of a method, function, argument. Methods of layers and losses that
// whoever runs a model calls, and operators of a torch.Ctx, are left out: contexts are made by functions that are in the list, and operators have a test of their own.
func nillable(t *testing.T, root string) (out []string) {
	t.Helper()
	interfaces := map[string]bool{"context.Context": true, "io.Reader": true, "io.Writer": true, "io.ReaderAt": true, "any": true}
	type file struct {
		pkg string
		*ast.File
	}
	var files []file
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{"internal", "cmd", "examples", "scripts", "out", "testdata", ".git"}, d.Name()):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		pkg := parsed.Name.Name
		files = append(files, file{pkg, parsed})
		ast.Inspect(parsed, func(n ast.Node) bool {
			if s, ok := n.(*ast.TypeSpec); ok {
				switch s.Type.(type) {
				case *ast.InterfaceType, *ast.FuncType:
					interfaces[pkg+"."+s.Name.Name] = s.TypeParams == nil
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// spelt is a type as a name with its package.
	spelt := func(pkg string, e ast.Expr) string {
		switch e := e.(type) {
		case *ast.Ident:
			if e.IsExported() {
				return pkg + "." + e.Name
			}
			return e.Name
		case *ast.SelectorExpr:
			return fmt.Sprint(e.X) + "." + e.Sel.Name
		}
		return ""
	}
	takesNil := func(pkg string, e ast.Expr) bool {
		if list, ok := e.(*ast.Ellipsis); ok {
			e = list.Elt
		}
		switch e.(type) {
		case *ast.StarExpr, *ast.FuncType, *ast.InterfaceType:
			return true
		}
		return interfaces[spelt(pkg, e)] && spelt(pkg, e) != "torch.Element"
	}
	for _, f := range files {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || !fn.Name.IsExported() {
				continue
			}
			name := f.pkg + "." + fn.Name.Name
			if fn.Recv != nil {
				r := fn.Recv.List[0].Type
				if star, ok := r.(*ast.StarExpr); ok {
					r = star.X
				}
				if generic, ok := r.(*ast.IndexExpr); ok {
					r = generic.X
				}
				on := fmt.Sprint(r)
				forward := slices.Contains([]string{"Forward", "ForwardTuple", "Targets"}, fn.Name.Name) && !slices.Contains([]string{"Sequential", "Module", "Pipe"}, on)
				operator := f.pkg == "torch" && on == "Ctx" && !slices.Contains([]string{"NoGrad", "Checkpoint", "Attach"}, fn.Name.Name)
				if !ast.IsExported(on) || forward || operator {
					continue
				}
				name = f.pkg + "." + on + "." + fn.Name.Name
			}
			for _, p := range fn.Type.Params.List {
				for _, n := range p.Names {
					if takesNil(f.pkg, p.Type) {
						out = append(out, name+"."+n.Name)
					}
				}
			}
		}
	}
	if len(out) < 100 {
		t.Fatalf("%d arguments only: %v", len(out), out)
	}
	return out
}
