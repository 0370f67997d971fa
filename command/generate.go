package command

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
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
		ids, err := tokens.Encode([]byte(g.prompt))
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
	var ids []int32
	var text []byte
	shown, out := 0, cmd.OutOrStdout()
	err = models.Generate(cmd.Context(), c, t.pipe.Model(), prompt, g.tokens, g.sampling, func(id int64) error {
		if tokens == nil {
			text = append(text, byte(id))
		} else if int(id) < tokens.Len() { // models may have more
			ids = append(ids, int32(id))
			if text, err = tokens.Decode(ids); err != nil {
				return err
			}
		}
		if r, n := utf8.DecodeLastRune(text); r == utf8.RuneError && n == 1 {
			return nil // a character is not complete
		}
		_, err := out.Write(text[shown:])
		shown = len(text)
		return err
	})
	if err != nil {
		return withRemedy(err, false)
	}
	_, err = fmt.Fprintf(out, "%s\n", text[shown:])
	return err
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

// tokenizer opens the tokenizer at path, or else the run's; nil is none.
func (t *trained) tokenizer(path string) (*tokenizer.Tokenizer, error) {
	chosen, _ := settingsOf(t.recipe.Data)["chosen"].(map[string]any)
	runs, _ := chosen["tokenizer"].(string)
	if path = cmp.Or(path, runs); path == "" && models.IsFolder(t.folder) {
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
