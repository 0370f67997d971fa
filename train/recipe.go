package train

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"penstock.example/data"
	"penstock.example/torch"
)

// Recipe is how a run is trained. A run that continues another must have the same recipe, as its weights
// would otherwise not be those of an uninterrupted run. It may change the setting "lr" (or "LR", of an
// optim.Config) of the optimizer, the setting "schedule-steps" of LRSchedule, Steps, Epochs and SaveEvery;
// Checkpoint.Changes tells them. Zero values of fields with omitempty are not written.
type Recipe struct {
	Model             Choice         `json:"model"`
	Data              Choice         `json:"data"`
	Batch             int            `json:"batch"`
	Chunks            int            `json:"chunks"` // batch norm and dropout see micro-batches
	Seed              uint64         `json:"seed"`
	Optimizer         Choice         `json:"optimizer"`
	LRSchedule        Choice         `json:"schedule"`
	ClipNorm          float64        `json:"clip_norm"`
	Accumulate        int            `json:"accumulate,omitempty"` // Loop.Accumulate; 0 is 1
	DeferredBatchNorm bool           `json:"deferred_batch_norm,omitempty"`
	Autocast          torch.Autocast `json:"autocast,omitempty"`
	TrainOnly         []string       `json:"train_only,omitempty"` // nn.TrainOnly's; nil is all layers

	// The next five may differ. The last bits of sums depend on the first two.
	Threads   int    `json:"threads,omitempty"`  // of each stage
	Replicas  int    `json:"replicas,omitempty"` // 0 is one
	Processes int    `json:"processes,omitempty"`
	Balance   []int  `json:"balance,omitempty"` // layers of each stage
	Plan      string `json:"plan,omitempty"`    // in its maker's form

	Steps     int64 `json:"steps"` // of the Loop, as are Epochs
	Epochs    int   `json:"epochs"`
	SaveEvery int64 `json:"save_every"` // steps between checkpoints; 0 is none

	// Samples describes the samples of the data, so that inputs can be made where the data are not
	// (data.NewInputs). Check compares the tokenizer alone.
	Samples *data.Info        `json:"samples,omitempty"`
	Kernels map[string]string `json:"kernels,omitempty"` // system.KernelNames, not compared; Save sets it
}

// Choice is a name with settings, which are written as JSON. Two choices are equal if their JSON
// is.
type Choice struct {
	Name     string `json:"name"`
	Settings any    `json:"settings,omitempty"`
}

// Change is a setting in which a run goes on otherwise than the checkpoint was trained.
type Change struct {
	Field        string // "batch", "optimizer.settings.lr", `tensor "fc.weight"`
	Saved, Given string // "absent" where there is none
}

// MismatchError says that a checkpoint belongs to another run.
type MismatchError struct {
	Path string // of the checkpoint
	Change
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("train: checkpoint %s is of another run: %s is %s there and %s here", e.Path,
		e.Field, e.Saved, e.Given)
}

// refused reports whether no run may go on with the change.
func (c Change) refused() bool {
	return !slices.Contains([]string{"optimizer.settings.lr", "optimizer.settings.LR",
		"schedule.settings.schedule-steps", "steps", "epochs", "save_every"}, c.Field)
}

// differences lists the compared fields in which another recipe differs, in the order of names.
func (c *Checkpoint) differences(given Recipe) ([]Change, error) {
	var saved, is any
	text, err := json.Marshal(given)
	if err = cmp.Or(err, decode(text, &is), decode(c.Contents.Recipe, &saved)); err != nil {
		return nil, fmt.Errorf("train: the recipe: %w", err)
	}
	return slices.DeleteFunc(differing("", saved, is), func(d Change) bool {
		top, _, _ := strings.Cut(d.Field, ".")
		return slices.Contains([]string{"threads", "replicas", "processes", "balance", "plan", "kernels",
			"samples"}, top)
	}), nil
}

// decode decodes JSON, with numbers as they are written.
func decode(text []byte, to any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return decoder.Decode(to)
}

// differing lists the fields in which two decoded values differ, in the order of names.
func differing(path string, a, b any) (all []Change) {
	left, leftOK := a.(map[string]any)
	right, rightOK := b.(map[string]any)
	if !leftOK || !rightOK {
		if was, is := text(a), text(b); was != is {
			return []Change{{path, was, is}}
		}
		return nil
	}
	keys := maps.Clone(left)
	maps.Copy(keys, right)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		below := strings.TrimPrefix(path+"."+key, ".")
		all = append(all, differing(below, left[key], right[key])...)
	}
	return all
}

// text is a decoded value as JSON, or "absent".
func text(v any) string {
	if v == nil {
		return "absent"
	}
	b, _ := json.Marshal(v) // which was JSON
	return string(b)
}
