package command

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/data"
	"penstock.example/internal/option"
	"penstock.example/models"
	"penstock.example/tokenizer"
	"penstock.example/torch"
)

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

// run prints the text as it comes.
func (g *generator) run(cmd *cobra.Command, f *trainedFlags, dir, path string) (err error) {
	s := cmd.Flags()
	if err := cmp.Or(checkPair(s, false, "FILE...", "top", "batch", "chunks", "stages"),
		checkPair(s, g.sampling.Temperature > 0, "--temperature", "top-k", "seed")); err != nil {
		return err
	}
	var tokens *tokenizer.Tokenizer // nil: a token is a byte
	var prompt []int64
	t, err := f.open(cmd, dir, func(t *trained) error {
		if s := t.recipe.Samples; s != nil && s.Source == data.Uint8 {
			for _, b := range []byte(g.prompt) {
				prompt = append(prompt, int64(b))
			}
			return g.checkLength(t, len(prompt))
		}
		if tokens, err = t.tokenizer(path); err == nil && tokens == nil {
			err = badUsage("--tokenizer PATH is needed, for a model of text")
		}
		if err != nil {
			return err
		}
		ids, err := t.promptTokens(tokens, g.prompt)
		for _, id := range ids {
			prompt = append(prompt, int64(id))
		}
		return cmp.Or(err, g.checkLength(t, len(prompt)))
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
		return withRemedy(err)
	}
	_, err = fmt.Fprintf(w.out, "%s\n", w.begun)
	return err
}

// textWriter writes the text of tokens.
type textWriter struct {
	tokens *tokenizer.Tokenizer // nil: a token is a byte
	out    io.Writer
	begun  []byte // of a character that is not complete
}

func (w *textWriter) write(id int64) error {
	if w.tokens == nil {
		w.begun = append(w.begun, byte(id))
	} else if int(id) < w.tokens.Len() { // models may have more
		text, err := w.tokens.Decode([]int32{int32(id)})
		if err != nil {
			return err
		}
		w.begun = append(w.begun, text...)
	}
	if r, n := utf8.DecodeLastRune(w.begun); r == utf8.RuneError && n == 1 {
		return nil
	}
	_, err := w.out.Write(w.begun)
	w.begun = w.begun[:0]
	return err
}

// promptTokens encodes a prompt as the model's texts are in training.
func (t *trained) promptTokens(tokens *tokenizer.Tokenizer, prompt string) ([]int32, error) {
	begin, _ := tokens.Template()
	var err error
	if text := t.chosen("begin"); text == "none" ||
		!models.IsFolder(t.folder) && t.recipe.Data.Name != "jsonl" {
		begin = nil
	} else if text != "" {
		begin, err = tokens.Encode([]byte(text))
	}
	ids, wrong := tokens.Encode([]byte(prompt))
	return slices.Concat(begin, ids), cmp.Or(err, wrong)
}

// checkLength refuses a text that is longer than the model's positions.
func (g *generator) checkLength(t *trained, prompt int) error {
	info, err := models.Describe(t.folder)
	if err != nil {
		return err
	}
	most := info.Defaults.Context
	if chosen, has := settingsOf(t.recipe.Model)["context"].(json.Number); has && !models.IsFolder(t.folder) {
		n, _ := chosen.Int64()
		most = int(n)
	}
	if info.Kind != models.Text {
		return badUsage("--prompt: %s is not a model of text", t.recipe.Model.Name)
	} else if prompt+g.tokens > most {
		return badUsage("--prompt of %s and --tokens %d: the model reads at most %d together",
			counted(prompt, "token"), g.tokens, most)
	}
	return nil
}

// chosen returns a setting of the run's --data-set, or "".
func (t *trained) chosen(name string) string {
	all, _ := settingsOf(t.recipe.Data)["chosen"].(map[string]any)
	text, _ := all[name].(string)
	return text
}

// tokenizer opens the tokenizer at path, or else the run's; nil is none.
func (t *trained) tokenizer(path string) (*tokenizer.Tokenizer, error) {
	if path = cmp.Or(path, t.chosen("tokenizer")); path == "" && models.IsFolder(t.folder) {
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
