package main

import (
	"fmt"

	"penstock.example/internal/arg"
	"penstock.example/planner/search"
)

// A model is measured for its smallest micro-batches first. Sizes of which some unit takes more than any device may
// hold have no plan, and are not measured.

// tooManyRows says why micro-batches of so many rows have no plan; "" if they may have one. Measured are those of
// fewer rows, as many as there are yet.
func (j *searchJob) tooManyRows(rows int, measured []search.Measured) string {
	one, found := search.TooManyRows(search.Profile{Measured: measured}, j.machine, j.wishes, rows)
	if !found {
		return ""
	}
	return fmt.Sprintf("layer %q alone takes %s with %s, and a device may have %s", one.Name, formatBytes(one.Bytes), counted(rows, "row"), arg.Size(one.Limit))
}

// rowsLeftOut says which sizes are not measured.
func rowsLeftOut(rows []int, why string) string {
	var list []string
	for _, n := range rows {
		list = append(list, fmt.Sprint(n))
	}
	verb := "is"
	if len(rows) > 1 || rows[0] != 1 {
		verb = "are"
	}
	return fmt.Sprintf("micro-batches of %s rows %s not measured: %s", arg.And(list...), verb, why)
}
