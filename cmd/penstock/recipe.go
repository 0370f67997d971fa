package main

import (
	"fmt"
	"strings"
)

// changedRecipe says in which settings a resumed run goes on otherwise than it was trained, as it may, or
// is "".
func (j *job) changedRecipe() (string, error) {
	changes, err := j.from.Changes(j.recipe)
	var text strings.Builder
	for _, c := range changes {
		fmt.Fprintf(&text, "; %s %s instead of %s", flagOf(c.Field), orNone(c.Given), orNone(c.Saved))
	}
	return text.String(), err
}

// orNone is a number of steps, or none.
func orNone(text string) string {
	if text == "0" || text == "absent" {
		return "none"
	}
	return text
}
