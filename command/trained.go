package command

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/internal/option"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/plan"
	"penstock.example/train"
)

type trainedFlags struct {
	best          bool
	stages, batch int
	config        pipe.Config
	limit         int64
}

func (f *trainedFlags) register(s *pflag.FlagSet) {
	s.SortFlags = false
	bestFlag(s, &f.best)
	option.Count(s, &f.stages, "stages", 1, "`N` stages that the model is cut into")
	devicesFlag(s, &f.config.Devices)
	option.Count(s, &f.batch, "batch", 0, "`N` samples in a batch (default: as in training)")
	option.Count(s, &f.config.Chunks, "chunks", 0, "`N` micro-batches of a batch (default: as in training)")
	limitFlag(s, &f.limit)
}

func bestFlag(s *pflag.FlagSet, best *bool) {
	s.BoolVar(best, "best", false, "the checkpoint with the best validation, in place of the newest")
}

// trained is a model with the weights of a checkpoint, in a pipe that trains nothing.
type trained struct {
	checkpoint *train.Checkpoint
	recipe     train.Recipe
	model      *nn.Sequential
	pipe       *pipe.Pipe
	batch      int
}

// open makes a trained model. Flags that are left out have the values of its training. prepare checks
// data before the model is placed, which costs more. The caller closes the model.
func (f *trainedFlags) open(cmd *cobra.Command, dir string, prepare func(*trained) error) (t *trained,
	err error) {
	t = &trained{}
	if t.checkpoint, err = findCheckpoint(dir, f.best); err != nil {
		return nil, err
	}
	t.recipe = t.checkpoint.Recipe
	if t.model, err = modelOfRecipe(t.checkpoint.Path, t.recipe); err != nil {
		return nil, wrongInput(err)
	}
	config := f.config
	config.Autocast, config.Threads = t.recipe.Autocast, t.recipe.Threads
	t.batch, config.Chunks = cmp.Or(f.batch, t.recipe.Batch, 1), cmp.Or(config.Chunks, t.recipe.Chunks, 1)
	if config.Balance, err = evenly(t.model.Layers(), f.stages); err != nil {
		return nil, badUsage("--stages %d: %s", f.stages, message(err))
	}
	if err := prepare(t); err != nil {
		return nil, wrongInput(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	if t.pipe, err = pipe.Open(t.model, config); err != nil {
		return t, inFlags(cmd.Flags(), err)
	}
	for _, d := range t.pipe.Devices() {
		d.SetLimit(f.limit)
	}
	if err = t.pipe.Place(); err == nil {
		err = t.checkpoint.RestoreModel(t.pipe)
	}
	return t, withRemedy(err)
}

// evenly cuts layers into stages with about the same bytes of parameters.
func evenly(layers []nn.NamedLayer, stages int) ([]int, error) {
	var costs []float64
	for _, l := range layers {
		costs = append(costs, float64(1+stateBytes(l.Layer))) // layers without parameters are spread as well
	}
	return plan.Partition(costs, stages)
}

func (t *trained) close() (err error) {
	if t.pipe != nil {
		devices := t.pipe.Devices()
		err = t.pipe.Close()
		for _, d := range devices {
			d.SetLimit(0)
		}
	}
	nn.Free(t.model)
	return err
}

func settingsOf(c train.Choice) map[string]any {
	settings, _ := c.Settings.(map[string]any)
	return settings
}

// modelOfRecipe makes the model of a checkpoint, without its weights.
func modelOfRecipe(path string, r train.Recipe) (*nn.Sequential, error) {
	var o models.Options
	if !slices.Contains(models.Names(), r.Model.Name) {
		return nil, fmt.Errorf("checkpoint %s is of a model %q, which penstock models does not list; use "+
			"the Go program that has it, or penstock export", path, r.Model.Name)
	}
	var set []string
	for name, value := range settingsOf(r.Model) {
		set = append(set, fmt.Sprint(name, "=", value))
	}
	slices.Sort(set)
	if err := models.Set(r.Model.Name, &o, set); err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", path, err)
	}
	return models.New(r.Model.Name, o)
}
