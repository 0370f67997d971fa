package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/torch"
)

// takePlan sets flags from the file of --plan. With --plan auto applyAutoPlan sets them later.
func (f *trainFlags) takePlan(cmd *cobra.Command) error {
	if f.planned == "" || f.planned == auto {
		return nil
	}
	line, err := readParsed(cmd, f.planned, parsePlan)
	if err != nil {
		return badUsage("--plan %w; penstock plan --model --out writes plans", err)
	}
	return f.take(cmd.Flags(), line)
}

// take sets flags from a plan. A flag that is given must have the plan's value, except flags of data
// and flags that --plan auto keeps.
func (f *trainFlags) take(s *pflag.FlagSet, line planJSON) error {
	refuse := func(name, value string, why error) error {
		return badUsage("--plan %s: %s is %s: %w", f.planned, name, value, why)
	}
	for _, name := range slices.Sorted(maps.Keys(line.Train)) {
		flag, has := s.Lookup(name), line.Train[name]
		if flag == nil {
			return refuse(name, has, errors.New("there is no such flag"))
		}
		given, self := strings.Trim(flag.Value.String(), "[]"), f.planned == auto
		switch {
		case !flag.Changed && has == "", flag.Changed && (given == has || name == "data" ||
			slices.Contains(dataOnly, name) || self && slices.Contains(keptByAuto, name)):
			continue
		case flag.Changed && !(self && name == "devices"): // a plan may reorder devices
			return badUsage("--%s %s: the plan of --plan %s has %s; want --%[1]s left out, or another plan",
				name, given, f.planned, cmp.Or(has, "none"))
		}
		values := []string{has}
		if flag.Value.Type() == repeatedType {
			values = strings.Split(has, ",")
		}
		for _, v := range values {
			if err := s.Set(name, v); err != nil {
				return refuse(name, v, errors.Unwrap(err))
			}
		}
	}
	f.bytes = nil
	if line.Bytes != nil {
		f.bytes = map[torch.Device]int64{}
	}
	for i := range min(len(line.Bytes), len(f.config.Devices)) {
		f.bytes[f.config.Devices[i]] = line.Bytes[i]
	}
	return nil
}

// parsePlan parses the plan of a model, without its page.
func parsePlan(text []byte) (line planJSON, err error) {
	page := struct {
		*planJSON
		Page json.RawMessage `json:"page"`
	}{planJSON: &line}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err = d.Decode(&page); err == nil && line.Train == nil {
		err = errors.New("it is of a chain, whose layers are not those of a model")
	}
	return line, err
}
