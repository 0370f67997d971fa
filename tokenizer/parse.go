package tokenizer

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/text/unicode/norm"

	"penstock.example/internal/disk"
)

const (
	wholeFile      = "tokenizer.json"
	vocabularyFile = "vocab.json"
	mergesFile     = "merges.txt"
)

// Open reads a tokenizer from path: a tokenizer.json of any name, a vocab.json next to a merges.txt, or a
// directory with such files. For a vocab.json it uses GPT-2's pattern, byte alphabet, and added token
// <|endoftext|> if the vocabulary has it. Errors name the file and the line, token or merge; the error is
// fs.ErrNotExist if a file is missing.
func Open(path string) (*Tokenizer, error) {
	files, err := Files(path)
	if err != nil {
		return nil, err
	}
	var contents [][]byte
	for _, file := range files {
		content, err := disk.Read(file, disk.MaxJSON)
		if err != nil {
			return nil, fmt.Errorf("tokenizer: %w", err)
		}
		contents = append(contents, content)
	}
	var f file
	var t *Tokenizer
	name := files[0]
	if len(files) == 1 {
		err = unmarshal(contents[0], &f)
	} else if err = unmarshal(contents[0], &f.Model.Vocab); err == nil {
		name = files[1]
		if f.Model.Merges, err = parseMerges(contents[1]); err == nil {
			name = files[0] + " and " + mergesFile
			f.completeGPT2()
		}
	}
	if err == nil {
		t, err = f.tokenizer()
	}
	if err != nil {
		return nil, disk.Short(fmt.Errorf("tokenizer: %s: %w", name, err))
	}
	return t, nil
}

// Files lists the files that Open reads. It returns an error if one is missing.
func Files(path string) ([]string, error) {
	stat := func(path string) error { _, err := os.Stat(path); return err }
	files, directory := []string{path}, path
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		directory = filepath.Dir(path)
	}
	if whole := filepath.Join(path, wholeFile); stat(whole) == nil {
		files = []string{whole}
	} else if err == nil && (info.IsDir() || filepath.Base(path) == vocabularyFile) {
		files = []string{filepath.Join(directory, vocabularyFile), filepath.Join(directory, mergesFile)}
		err = cmp.Or(stat(files[0]), stat(files[1]))
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w; want a tokenizer.json, a vocab.json with a merges.txt "+
			"beside it, or a directory with them", err)
	}
	return files, nil
}

// file has the fields of a tokenizer.json that affect encoding.
type file struct {
	AddedTokens   []addedToken `json:"added_tokens"`
	Normalizer    *step        `json:"normalizer"`
	PreTokenizer  *step        `json:"pre_tokenizer"`
	PostProcessor template     `json:"post_processor"`
	Model         struct {
		Type         string           `json:"type"`
		Dropout      float64          `json:"dropout"`
		Prefix       string           `json:"continuing_subword_prefix"`
		Suffix       string           `json:"end_of_word_suffix"`
		IgnoreMerges bool             `json:"ignore_merges"`
		ByteFallback bool             `json:"byte_fallback"`
		Unknown      string           `json:"unk_token"`
		FuseUnknown  bool             `json:"fuse_unk"`
		Vocab        map[string]int32 `json:"vocab"`
		Merges       []mergePair      `json:"merges"`
	} `json:"model"`
}

type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
}

const otherTokenizersAdvice = "for any other tokenizer make the tokens with Hugging Face's library and " +
	"write them by numpy's tofile as uint16 or uint32, which the data set tokens reads"

// step is a normalizer or a pre-tokenizer, or a Sequence of them.
type step struct {
	Type             string                          `json:"type"`
	Normalizers      []step                          `json:"normalizers"`
	PreTokenizers    []step                          `json:"pretokenizers"`
	AddPrefixSpace   *bool                           `json:"add_prefix_space"` // nil is true
	UseRegex         *bool                           `json:"use_regex"`        // nil is true
	IndividualDigits bool                            `json:"individual_digits"`
	Behavior         string                          `json:"behavior"`
	Invert           bool                            `json:"invert"`
	Pattern          struct{ Regex, String *string } `json:"pattern"`
	Prepend          string                          `json:"prepend"`
	Content          string                          `json:"content"`
	Replacement      string                          `json:"replacement"`
	Scheme           string                          `json:"prepend_scheme"`
	Split            *bool                           `json:"split"` // nil is true
}

// template is a post-processor: a TemplateProcessing, a Sequence, or one that adds no tokens to a text.
type template struct {
	Processors []template                  `json:"processors"`
	Single     []map[string]map[string]any `json:"single"` // SpecialTokens around a Sequence, the text
	Tokens     map[string]struct {
		IDs []int32 `json:"ids"`
	} `json:"special_tokens"`
}

// completeGPT2 adds what vocab.json and merges.txt leave out.
func (f *file) completeGPT2() {
	const end = "<|endoftext|>"
	f.PreTokenizer = &step{Type: "ByteLevel", AddPrefixSpace: new(false)}
	if id, ok := f.Model.Vocab[end]; ok {
		f.AddedTokens = []addedToken{{ID: id, Content: end}}
	}
}

func (f *file) tokenizer() (*Tokenizer, error) {
	m := f.Model
	switch {
	case m.Type != "BPE" && m.Type != "":
		return nil, fmt.Errorf("model.type is %q; want BPE: %s", m.Type, otherTokenizersAdvice)
	case len(m.Vocab) == 0:
		return nil, errors.New("model.vocab has no tokens; want a tokenizer.json of byte-pair encoding: " +
			"this may be another kind of file")
	case m.Dropout != 0 || m.Prefix != "" || m.Suffix != "":
		return nil, fmt.Errorf("model has the dropout %g, continuing_subword_prefix %q and "+
			"end_of_word_suffix %q; want none of them", m.Dropout, m.Prefix, m.Suffix)
	}
	t := &Tokenizer{added: map[string]int32{}, model: model{vocabulary: m.Vocab, wordsFirst: m.IgnoreMerges,
		byteFallback: m.ByteFallback, unknown: -1, fuseUnknown: m.FuseUnknown}}
	if id, ok := m.Vocab[m.Unknown]; ok {
		t.model.unknown = id
	} else if m.Unknown != "" {
		return nil, fmt.Errorf("model.unk_token is %q; want a token of model.vocab", m.Unknown)
	}
	for _, a := range f.AddedTokens {
		if a.SingleWord || a.LStrip || a.RStrip {
			return nil, fmt.Errorf("added token %q has single_word, lstrip or rstrip; want none: it "+
				"would match words or spaces around it", a.Content)
		}
		t.added[a.Content] = a.ID
	}
	return t, cmp.Or(t.readNormalizer(f.Normalizer), t.readPreTokenizer(f.PreTokenizer), t.splitMetaspaces(),
		t.indexTokens(m.Merges), t.readTemplate(f.PostProcessor))
}

// readTemplate sets the special tokens around a text.
func (t *Tokenizer) readTemplate(f template) (err error) {
	for _, one := range f.Processors {
		err = cmp.Or(err, t.readTemplate(one))
	}
	to := &t.begin
	for _, piece := range f.Single {
		if piece["SpecialToken"] == nil {
			to = &t.end
			continue
		}
		name, _ := piece["SpecialToken"]["id"].(string)
		ids := f.Tokens[name].IDs
		if _, unknown := t.Decode(ids); unknown != nil || ids == nil {
			return fmt.Errorf("post_processor: the token %q is %v; want a token of the vocabulary", name, ids)
		}
		*to = append(*to, ids...)
	}
	return err
}

func (t *Tokenizer) readNormalizer(s *step) (err error) {
	if s == nil {
		return nil
	}
	if s.Type == "Sequence" {
		for _, one := range s.Normalizers {
			err = cmp.Or(err, t.readNormalizer(&one))
		}
		return err
	}
	switch space := s.Pattern.String; {
	case s.Type == "Prepend" && s.Prepend == metaspace:
		t.lead = leadAlways
		return nil
	case s.Type == "Replace" && space != nil && *space == " " && s.Content == metaspace:
		t.metaspace = true
		return nil
	}
	forms := []string{norm.NFC: "NFC", norm.NFD: "NFD", norm.NFKC: "NFKC", norm.NFKD: "NFKD"}
	form := slices.Index(forms, s.Type)
	if form < 0 || t.form != nil {
		return fmt.Errorf("normalizer is %s; want none, or one of NFC, NFD, NFKC and NFKD: %s", s.Type,
			otherTokenizersAdvice)
	}
	t.form = new(norm.Form(form))
	return nil
}

func (t *Tokenizer) readPreTokenizer(s *step) (err error) {
	if s == nil {
		return nil
	}
	if t.byteLevel {
		return fmt.Errorf("pre_tokenizer has %s after ByteLevel; want ByteLevel last", s.Type)
	}
	pattern, matches, gaps := "", true, true
	switch s.Type {
	case "Sequence":
		for _, one := range s.PreTokenizers {
			err = cmp.Or(err, t.readPreTokenizer(&one))
		}
		return err
	case "ByteLevel":
		if s.AddPrefixSpace == nil || *s.AddPrefixSpace {
			if len(t.splits) > 0 {
				return errors.New("pre_tokenizer puts a space in front of each piece of a split; want " +
					"add_prefix_space false")
			}
			t.lead = leadMissing
		}
		t.byteLevel = true
		if s.UseRegex != nil && !*s.UseRegex {
			return nil
		}
		pattern = gpt2Pattern
	case "Metaspace":
		if s.Replacement != metaspace || s.Scheme != "first" || s.Split == nil || *s.Split {
			return errors.New("pre_tokenizer is a Metaspace; want the replacement ▁, prepend_scheme first " +
				"and split false")
		}
		t.metaspace, t.lead = true, leadStart
		return nil
	case "Digits":
		if pattern = `\p{N}+`; s.IndividualDigits {
			pattern = `\p{N}`
		}
	case "Split":
		if s.Pattern.Regex != nil {
			pattern = *s.Pattern.Regex
		} else if s.Pattern.String != nil {
			pattern = regexp.QuoteMeta(*s.Pattern.String)
		}
		if s.Behavior == "Removed" {
			matches, gaps = s.Invert, !s.Invert
		}
		if pattern == "" || s.Behavior != "Isolated" && s.Behavior != "Removed" {
			return fmt.Errorf("pre_tokenizer has a Split by %q with the behavior %q; want a Regex or a "+
				"String, and Isolated or Removed", pattern, s.Behavior)
		}
	default:
		return fmt.Errorf("pre_tokenizer is %s; want ByteLevel, Split, Digits, Metaspace, or a Sequence of "+
			"them: %s", s.Type, otherTokenizersAdvice)
	}
	one, err := newSplit(pattern, matches, gaps)
	if err != nil {
		return fmt.Errorf("pre_tokenizer: the pattern %q: %w", pattern, err)
	}
	t.splits = append(t.splits, one)
	return nil
}

// metaspace stands for a space in vocabularies made by SentencePiece.
const metaspace = "▁"

// splitMetaspaces adds a split of text before metaspaces, so that pieces are words. It adds none if
// a token has a metaspace after another character: words are then not separate.
func (t *Tokenizer) splitMetaspaces() (err error) {
	switch {
	case !t.metaspace && t.lead != leadAlways:
		return nil
	case !t.metaspace || t.byteLevel || len(t.splits) > 0:
		return errors.New("want a normalizer with a Prepend and then a Replace of spaces by ▁ and no " +
			"pre_tokenizer, or a Metaspace alone")
	}
	for token := range t.model.vocabulary {
		if strings.Contains(strings.TrimLeft(token, metaspace), metaspace) {
			return nil
		}
	}
	words, err := newSplit("▁*[^▁]+|▁+", true, true)
	t.splits = []split{words}
	return err
}

// indexTokens fills the tables of tokens by number, merges, and added tokens.
func (t *Tokenizer) indexTokens(merges []mergePair) error {
	all := maps.Clone(t.model.vocabulary)
	for token, id := range t.added {
		if known, ok := all[token]; ok && known != id {
			return fmt.Errorf("token %q is %d in model.vocab and %d in added_tokens; want one number",
				token, known, id)
		}
		all[token] = id
	}
	for _, token := range slices.Sorted(maps.Keys(all)) {
		id := all[token]
		switch {
		case token == "":
			return errors.New(`token "" is in the vocabulary; want no empty one`)
		case id < 0 || id >= disk.MaxTokens:
			return fmt.Errorf("token %q is %d; want a number from 0 to %d", token, id,
				disk.MaxTokens-1)
		case int(id) >= len(t.tokens):
			t.tokens = append(t.tokens, make([]string, int(id)+1-len(t.tokens))...)
		case t.tokens[id] != "":
			return fmt.Errorf("tokens %q and %q are both %d; want a number for each", t.tokens[id], token, id)
		}
		t.tokens[id] = token
	}
	t.model.merges = make(map[[2]int32]merge, len(merges))
	for rank, m := range merges {
		var ids [3]int32
		for i, token := range []string{m[0], m[1], m[0] + m[1]} {
			id, ok := t.model.vocabulary[token]
			if !ok {
				return fmt.Errorf("merge %d, of %q and %q: %q is not in the vocabulary; want the merges "+
					"that were learned with it", rank+1, m[0], m[1], token)
			}
			ids[i] = id
		}
		t.model.merges[[2]int32{ids[0], ids[1]}] = merge{rank, ids[2]}
	}
	var quoted []string
	for token := range t.added {
		quoted = append(quoted, regexp.QuoteMeta(token))
	}
	switch pattern := strings.Join(quoted, "|"); {
	case len(pattern) > disk.MaxPattern:
		return fmt.Errorf("added_tokens have %d bytes; want at most %d", len(pattern), disk.MaxPattern)
	case pattern != "":
		t.anyAdded = regexp.MustCompile(pattern)
		t.anyAdded.Longest()
	}
	return nil
}

// mergePair is the two tokens of a merge: ["a", "b"], or "a b" in older files.
type mergePair [2]string

func (p *mergePair) UnmarshalJSON(content []byte) (err error) {
	var both []string
	if content[0] == '"' {
		var text string
		err = json.Unmarshal(content, &text)
		both = strings.Split(text, " ")
	} else {
		err = json.Unmarshal(content, &both)
	}
	return cmp.Or(err, p.set(both))
}

func (p *mergePair) set(both []string) error {
	if len(both) != 2 || both[0] == "" || both[1] == "" {
		return fmt.Errorf("the merge %.60q; want two tokens with a space between", both)
	}
	*p = mergePair(both)
	return nil
}

// parseMerges reads a merge from each line but a first line that begins with #version.
func parseMerges(content []byte) (all []mergePair, err error) {
	number := 0
	for line := range strings.Lines(string(content)) {
		number++
		line = strings.TrimRight(line, "\r\n")
		if line == "" || number == 1 && strings.HasPrefix(line, "#version") {
			continue
		}
		var both mergePair
		if err := both.set(strings.Split(line, " ")); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		all = append(all, both)
	}
	return all, nil
}

// unmarshal decodes JSON and refuses duplicate names. Errors have the line.
func unmarshal(content []byte, v any) error {
	err := json.Unmarshal(content, v)
	var syntax *jsontext.SyntacticError
	var wrong *json.SemanticError
	offset := int64(0)
	if errors.As(err, &syntax) {
		offset = syntax.ByteOffset
	} else if errors.As(err, &wrong) {
		offset = wrong.ByteOffset
	}
	if err != nil {
		err = fmt.Errorf("line %d: %w; want the JSON of a tokenizer: the file may be damaged, or cut short",
			1+bytes.Count(content[:offset], []byte("\n")), err)
	}
	return err
}
