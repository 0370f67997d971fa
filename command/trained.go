package command

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/data"
	"penstock.example/internal/option"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/plan"
	"penstock.example/tokenizer"
	"penstock.example/torch"
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
	modelFlags
	checkpoint *train.Checkpoint
	recipe     train.Recipe
	model      *nn.Sequential
	weights    weightFlags // for a folder's model
	pipe       *pipe.Pipe
	batch      int
}

// open makes a trained model. Flags that are left out have the values of its training. prepare opens data
// before the costly placing of the model. The caller closes the model.
func (f *trainedFlags) open(cmd *cobra.Command, dir string, prepare func(*trained) error) (t *trained,
	err error) {
	t = &trained{}
	if t.checkpoint, err = folderOrCheckpoint(dir, f.best); err != nil {
		return nil, err
	}
	c := t.checkpoint
	if t.weights.adapter = f.adapter; f.adapter != "" && c.Version > 0 {
		return nil, badUsage("--adapter: %s is a run's; want a folder with a model of Hugging Face", c.Path)
	} else if f.adapter != "" {
		t.lora.LoRA, err = models.ReadAdapter(f.adapter)
	}
	if err = cmp.Or(err, t.makeModel()); err == nil && c.Version == 0 {
		err = t.weights.match("DIR", t.folder, t.model, io.Discard)
	}
	if err != nil {
		return nil, wrongInput(err)
	}
	config := f.config
	config.Autocast, config.Threads = t.recipe.Autocast, t.recipe.Threads
	replicas := max(t.recipe.Replicas, 1)
	t.batch = cmp.Or(f.batch, (t.recipe.Batch+replicas-1)/replicas, 1) // as in train.Evaluate
	config.Chunks = cmp.Or(config.Chunks, t.recipe.Chunks, 1)
	var costs []float64 // about the same bytes of parameters on each stage
	for _, l := range nn.Summary(t.model) {
		costs = append(costs, float64(1+l.Bytes)) // layers without parameters are spread as well
	}
	if config.Balance, err = plan.Partition(costs, f.stages); err != nil {
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
	if err = t.weights.place(t.pipe); err == nil && c.Version > 0 {
		err = c.RestoreModel(t.pipe)
	}
	return t, withRemedy(err, false)
}

// makeModel makes the checkpoint's model without weights, from the model's folder or by its name.
func (t *trained) makeModel() (err error) {
	c, run := t.checkpoint, ""
	if t.recipe = c.Recipe; c.Version > 0 {
		run = filepath.Dir(c.Path)
	}
	t.modelName, t.folder = t.recipe.Model.Name, modelFolder(t.recipe.Model.Name, run)
	var wrong error
	if t.info, wrong = models.Describe(t.folder); wrong != nil && !models.IsFolder(t.folder) {
		return fmt.Errorf("checkpoint %s is of a model %q, which penstock models does not list; use "+
			"the Go program that has it, or penstock export", c.Path, t.folder)
	}
	var settings []string
	for name, value := range settingsOf(t.recipe.Model) {
		if name == "lora" {
			err = t.lora.read(fmt.Sprint(value))
		} else {
			settings = append(settings, fmt.Sprintf("%s=%v", name, value))
		}
	}
	if err = cmp.Or(wrong, err, models.Set(t.folder, &t.options, settings)); err != nil {
		return fmt.Errorf("checkpoint %s: %w", c.Path, err)
	}
	t.model, err = newModel(t.folder, t.options, t.lora)
	return err
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

// generator is predict --prompt: it continues a text.
type generator struct {
	prompt   string
	tokens   int
	sampling models.Sampling
}

var generatorOnly = []string{"tokens", "temperature", "top-k", "seed"}

func (g *generator) register(s *pflag.FlagSet) {
	s.StringVar(&g.prompt, "prompt", "", "`TEXT` to continue, in place of files")
	option.Count(s, &g.tokens, "tokens", 50, "`N` tokens, or bytes, after --prompt at most")
	option.Amount(s, &g.sampling.Temperature, "temperature", math.Inf(1), "draw tokens at temperature `T` "+
		"(default: take the most likely one)")
	option.Count(s, &g.sampling.TopK, "top-k", 0, "draw from the `K` most likely tokens (default all)")
	s.Uint64Var(&g.sampling.Seed, "seed", 1, "`SEED` of the draws")
}

func (g *generator) run(cmd *cobra.Command, f *trainedFlags, dir, path string) (err error) {
	s := cmd.Flags()
	if err := cmp.Or(refuseWithout(s, false, "FILE...", "top", "batch", "chunks", "stages"),
		refuseWithout(s, g.sampling.Temperature > 0, "--temperature", "top-k", "seed")); err != nil {
		return err
	}
	var tokens *tokenizer.Tokenizer // nil: a token is a byte
	var prompt []int64
	t, err := f.open(cmd, dir, func(t *trained) (err error) {
		if t.info.Kind != models.Text {
			return badUsage("--prompt: %s is not a model of text", t.recipe.Model.Name)
		}
		if s := t.recipe.Samples; s != nil && s.Source == data.Uint8 {
			for _, b := range []byte(g.prompt) {
				prompt = append(prompt, int64(b))
			}
			return g.checkLength(t, len(prompt))
		}
		if tokens, err = t.tokenizer(path); err == nil && tokens == nil {
			err = badUsage("--tokenizer PATH is needed: %s has none", t.checkpoint.Path)
		}
		if err != nil {
			return err
		}
		begin, err := t.beginTokens(tokens)
		ids, wrong := tokens.Encode([]byte(g.prompt))
		for _, id := range slices.Concat(begin, ids) {
			prompt = append(prompt, int64(id))
		}
		return cmp.Or(err, wrong, g.checkLength(t, len(prompt)), t.checkTokens(tokens.Len()))
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	g.sampling.Stop = endTokens(t.folder)
	c := torch.NewCtx(torch.Options{Device: t.pipe.Devices()[0]})
	defer c.Close()
	w := textWriter{tokens: tokens, out: cmd.OutOrStdout()}
	err = models.Generate(cmd.Context(), c, t.pipe.Model(), prompt, g.tokens, g.sampling, w.write)
	if err != nil {
		return withRemedy(err, false)
	}
	_, err = fmt.Fprintf(w.out, "%s\n", w.begun)
	return err
}

type textWriter struct {
	tokens *tokenizer.Tokenizer // nil: a token is a byte
	out    io.Writer
	begun  []byte // the bytes of an incomplete character
}

func (w *textWriter) write(id int64) (err error) {
	var text []byte
	if w.tokens == nil {
		text = []byte{byte(id)}
	} else if int(id) < w.tokens.Len() { // models may have more
		text, err = w.tokens.Decode([]int32{int32(id)})
	}
	w.begun = append(w.begun, text...)
	if r, n := utf8.DecodeLastRune(w.begun); err != nil || r == utf8.RuneError && n == 1 {
		return err
	}
	_, err = w.out.Write(w.begun)
	w.begun = w.begun[:0]
	return err
}

// beginTokens returns the tokens before a text, as in training.
func (t *trained) beginTokens(tokens *tokenizer.Tokenizer) ([]int32, error) {
	switch text := t.dataSetting("begin"); text {
	case "":
		begin, _ := tokens.Template()
		return begin, nil
	case "none":
		return nil, nil
	default:
		return tokens.Encode([]byte(text))
	}
}

// checkLength refuses a text that is longer than the model's positions.
func (g *generator) checkLength(t *trained, prompt int) error {
	most := t.info.Defaults.Context
	if !models.IsFolder(t.folder) {
		most = cmp.Or(t.options.Context, most)
	}
	if prompt == 0 {
		return badUsage("--prompt: the prompt has no tokens")
	} else if prompt+g.tokens > most {
		return badUsage("--prompt of %s and --tokens %d: the model reads at most %d together",
			counted(prompt, "token"), g.tokens, most)
	}
	return nil
}

// checkTokens refuses more tokens than a folder's model has.
func (t *trained) checkTokens(n int) error {
	if most := t.info.Defaults.Classes; models.IsFolder(t.folder) && n > most {
		return badUsage("%d tokens, and %s has %d: want the tokenizer of the model", n, t.folder, most)
	}
	return nil
}

// dataSetting returns a setting of the run's --data-set, or "".
func (t *trained) dataSetting(name string) string {
	all, _ := settingsOf(t.recipe.Data)["chosen"].(map[string]any)
	text, _ := all[name].(string)
	return text
}

// tokenizer opens the tokenizer at path, or else the run's; nil is none.
func (t *trained) tokenizer(path string) (*tokenizer.Tokenizer, error) {
	if path = cmp.Or(path, t.dataSetting("tokenizer")); path == "" && models.IsFolder(t.folder) {
		path = t.folder
	}
	if path == "" {
		return nil, nil
	}
	tokens, err := tokenizer.Open(path)
	if err != nil {
		err = fmt.Errorf("--tokenizer: %w", err)
	}
	return tokens, err
}
