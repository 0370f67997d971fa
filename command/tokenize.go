package command

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"penstock.example/internal/disk"
	"penstock.example/internal/option"
	"penstock.example/internal/progress"
	"penstock.example/tokenizer"
)

func newTokenize() *cobra.Command {
	var path, out string
	cmd := &cobra.Command{
		Use:   "tokenize FILE... --tokenizer PATH --out FILE.bin [flags]",
		Short: "Write the tokens of texts to a file to train on",
		Long: `Make tokens of texts once, for --data tokens; --data text makes them again at every start.
Tokens need not fit into memory in training. Each text is encoded by itself, in the order
given, with the tokenizer's special tokens around it, such as Llama's <|begin_of_text|>.

PATH is a tokenizer.json of byte-pair encoding, or a directory with one or with
a vocab.json and a merges.txt.`,
		Example: `  penstock tokenize shakespeare.txt --tokenizer gpt2 --out shakespeare.bin`,
		Args:    arguments("FILE...", "--tokenizer", "--out"),
		RunE:    func(cmd *cobra.Command, args []string) error { return tokenize(cmd, args, path, out) },
	}
	s := cmd.Flags()
	s.SortFlags = false
	option.Path(s, &path, "tokenizer", "`PATH` of the tokenizer")
	option.Path(s, &out, "out", "`FILE` to write")
	return cmd
}

func tokenize(cmd *cobra.Command, texts []string, path, out string) error {
	t, err := tokenizer.Open(path)
	if err != nil {
		return wrongInput(fmt.Errorf("--tokenizer: %w", err))
	}
	files, err := tokenizer.Files(path)
	if err = cmp.Or(err, probe("out", out, append(files, texts...)...)); err != nil {
		return err
	}
	options, wide := fmt.Sprint("classes=", t.Len()), t.Len() > 1<<16
	if wide {
		options += ",type=uint32"
	}
	begin, end := t.Template()
	count := 0
	err = disk.Write(out, func(w io.Writer) error {
		show := progress.Successive(cmd.ErrOrStderr(), "bytes")
		for _, name := range texts {
			text, err := disk.Read(name, disk.MaxText)
			if err != nil {
				return wrongInput(err)
			}
			write := func(ids []int32, done int) error {
				if err := cmd.Context().Err(); err != nil {
					return err
				}
				show(name, done, len(text))
				count += len(ids)
				var bytes []byte
				for _, id := range ids {
					if bytes = binary.LittleEndian.AppendUint16(bytes, uint16(id)); wide {
						bytes = binary.LittleEndian.AppendUint16(bytes, uint16(id>>16))
					}
				}
				_, err := w.Write(bytes)
				return err
			}
			if err = write(begin, 0); err == nil {
				err = cmp.Or(t.EncodeParts(text, write), write(end, len(text)))
			}
			if err != nil {
				return wrongInput(fmt.Errorf("%s: %w", name, err))
			}
		}
		if count == 0 {
			return badUsage("the texts have no tokens; want some")
		}
		return nil
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s of %d\nto train: --data tokens --data-dir %s --data-set %s\n",
		counted(count, "token"), t.Len(), out, options)
	return err
}
