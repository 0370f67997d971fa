package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"penstock.example/data"
	"penstock.example/internal/disk"
	"penstock.example/tokenizer"
)

func newTokenize() *cobra.Command {
	var from, out, kind string
	cmd := &cobra.Command{
		Use:   "tokenize FILE... --tokenizer PATH --out FILE.bin [flags]",
		Short: "Write the tokens of texts to a file to train on",
		Long: `Make tokens of texts once, where --data text makes them again at every start, and write
them to a file for --data tokens, which reads samples when they are asked for: neither the
text nor the tokens need fit memory in training. Each text becomes tokens by itself, in the order
given, and no token is put between them. Output says the flags to train with.

PATH is a tokenizer.json of byte-level byte-pair encoding, or a directory with one or with a
vocab.json and a merges.txt. Tokens of any other tokenizer are written by its own library, as
little-endian uint16 or uint32:

  numpy.array(ids, dtype="<u2").tofile("tokens.bin")`,
		Example: `  penstock tokenize shakespeare.txt --tokenizer gpt2 --out shakespeare.bin
  penstock train --model gpt2 --data tokens --data-dir shakespeare.bin --data-set classes=50257`,
		Args: atLeast("FILE"),
		RunE: interruptible("tokens were made", func(cmd *cobra.Command, args []string) error {
			if err := need(cmd, "tokenizer", "out"); err != nil {
				return err
			}
			return tokenize(cmd, args, from, out, kind)
		}),
	}
	s := cmd.Flags()
	s.SortFlags = false
	path(s, &from, "tokenizer", "`PATH` of the tokenizer")
	path(s, &out, "out", "`FILE` to write")
	word(s, &kind, "type", "", "`TYPE` of a token in the file: uint16 or uint32 (default: the narrowest "+
		"that holds all tokens)", "uint16", "uint32")
	return cmd
}

// tokenize writes the tokens of texts to a file, or nothing.
func tokenize(cmd *cobra.Command, texts []string, from, out, kind string) error {
	t, err := tokenizer.Open(from)
	if err != nil {
		return wrongInput(fmt.Errorf("--tokenizer: %w", err))
	}
	const most = 1 << 16 // tokens of uint16
	switch {
	case kind == "uint16" && t.Len() > most:
		return badUsage("--type uint16: the tokenizer has %d tokens, and uint16 is for %d; want uint32",
			t.Len(), most)
	case kind == "" && t.Len() <= most:
		kind = "uint16"
	case kind == "":
		kind = "uint32"
	}
	inputs, err := tokenizer.Files(from)
	if err != nil {
		return wrongInput(fmt.Errorf("--tokenizer: %w", err))
	}
	if err := checkOutput(cmd.OutOrStdout()); err != nil {
		return err
	}
	if err := checkOut(cmd, out, append(inputs, texts...)...); err != nil {
		return err
	}
	count := 0
	err = disk.Write(out, func(w io.Writer) error {
		for _, name := range texts {
			text, err := disk.Read(name, data.MaxText)
			if err != nil {
				return wrongInput(err)
			}
			progress := counters{w: cmd.ErrOrStderr(), unit: "bytes"}
			err = t.EncodeParts(text, func(ids []int32, done int) error {
				if err := cmd.Context().Err(); err != nil {
					return err
				}
				progress.at(name, done, len(text))
				count += len(ids)
				var bytes []byte
				for _, id := range ids {
					if kind == "uint16" {
						bytes = binary.LittleEndian.AppendUint16(bytes, uint16(id))
					} else {
						bytes = binary.LittleEndian.AppendUint32(bytes, uint32(id))
					}
				}
				_, err := w.Write(bytes)
				return err
			})
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		if count == 0 {
			return errors.New("the texts have no tokens; want some")
		}
		return nil
	})
	if err != nil {
		return err
	}
	options := fmt.Sprintf("classes=%d", t.Len())
	if kind == "uint32" {
		options += ",type=uint32"
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s of %d, %s\nto train: --data tokens --data-dir %s "+
		"--data-set %s\n",
		out, counted(count, "token"), t.Len(), kind, shellQuoted([]string{out}), options)
	return err
}
