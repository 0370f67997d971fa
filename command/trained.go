package command

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
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
	adapter       string // a folder; "" is none
	stages, batch int
	config        pipe.Config
	limit         int64
}

func (f *trainedFlags) register(s *pflag.FlagSet) {
	s.SortFlags = false
	bestFlag(s, &f.best)
	option.Path(s, &f.adapter, "adapter", "`FOLDER` of a LoRA adapter of PEFT, if DIR is a model's folder")
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
	folder     string // of the model; or its name
	lora       adapters
	weights    string // in the folder, if there is no checkpoint
	rules      nn.WeightsConfig
	pipe       *pipe.Pipe
	batch      int
}

// open makes a trained model. Flags that are left out have the values of its training. prepare checks
// data before the model is placed, which costs more. The caller closes the model.
func (f *trainedFlags) open(cmd *cobra.Command, dir string, prepare func(*trained) error) (t *trained,
	err error) {
	t = &trained{}
	if t.checkpoint, err = folderOrCheckpoint(dir, f.best); err != nil {
		return nil, err
	}
	file := filepath.Join(f.adapter, models.AdapterWeights)
	if c := t.checkpoint; f.adapter != "" && c.Version > 0 {
		return nil, badUsage("--adapter: %s is a run's; want a folder with a model of Hugging Face", c.Path)
	} else if f.adapter != "" {
		lora, err := readAdapter(f.adapter)
		if err != nil {
			return nil, err
		}
		c.Recipe.Model.Settings = map[string]any{"lora": lora}
	}
	err = t.makeModel()
	if err == nil && f.adapter != "" {
		_, err = nn.CheckWeights(file, nn.Adapters(t.model), nn.WeightsConfig{})
	}
	if err != nil {
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
	err = t.pipe.Place()
	if err == nil && t.weights != "" {
		err = loadWeights(t.weights, t.pipe.Model(), t.rules)
	} else if err == nil {
		err = t.checkpoint.RestoreModel(t.pipe)
	}
	if err == nil && f.adapter != "" {
		err = loadWeights(file, nn.Adapters(t.pipe.Model()), nn.WeightsConfig{})
	}
	return t, withRemedy(err)
}

// makeModel makes the model of the checkpoint, without its weights.
func (t *trained) makeModel() (err error) {
	c, run := t.checkpoint, ""
	if t.recipe = c.Recipe; c.Version > 0 {
		run = filepath.Dir(c.Path)
	}
	t.folder = modelFolder(t.recipe.Model.Name, run)
	if t.model, t.lora, err = modelOfRecipe(c.Path, t.folder, t.recipe); err == nil && run == "" {
		if t.weights, t.rules, err = models.Weights(t.folder, t.model); err == nil {
			_, err = nn.CheckWeights(t.weights, t.model, t.rules)
		}
	}
	return err
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

// modelOfRecipe makes the model of a checkpoint in its folder, or by its name, without its weights.
func modelOfRecipe(path, folder string, r train.Recipe) (m *nn.Sequential, a adapters, err error) {
	var o models.Options
	if !models.IsFolder(folder) && !slices.Contains(models.Names(), folder) {
		return nil, a, fmt.Errorf("checkpoint %s is of a model %q, which penstock models does not list; use "+
			"the Go program that has it, or penstock export", path, folder)
	}
	settings := settingsOf(r.Model)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		text := fmt.Sprint(settings[name])
		if name == "lora" {
			err = a.read(text)
		} else {
			err = models.Set(folder, &o, []string{name + "=" + text})
		}
		if err != nil {
			return nil, a, fmt.Errorf("checkpoint %s: %w", path, err)
		}
	}
	m, err = newModel(folder, o, a)
	return m, a, err
}
