package arg

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Numbered names things by their numbers: "rank 2", "ranks 0, 1 and 3", or the first of many and how many
// more. It is "" for none.
func Numbered(what string, numbers []int) string {
	const most = 16
	var words []string
	for _, n := range numbers[:min(len(numbers), most)] {
		words = append(words, strconv.Itoa(n))
	}
	if n := len(numbers); n > most {
		words = append(words, fmt.Sprintf("%d more", n-most))
	}
	switch len(words) {
	case 0:
		return ""
	case 1:
		return what + " " + words[0]
	default:
		return what + "s " + And(words...)
	}
}

// And is words with commas and the last "and" between them.
func And(words ...string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " and " + words[last]
}

// Differ says who has which value of a setting, such as "rank 2 has --seed 7, ranks 0, 1 and 3 have 8". The
// values that fewest have come first. An empty value is "none". It is "" where all have the same.
func Differ(who, setting string, values map[int]string) string {
	having := map[string][]int{}
	for _, number := range slices.Sorted(maps.Keys(values)) {
		v := values[number]
		having[v] = append(having[v], number)
	}
	if len(having) < 2 {
		return ""
	}
	distinct := slices.SortedFunc(maps.Keys(having), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(having[a]), len(having[b])), cmp.Compare(having[a][0], having[b][0]))
	})
	var parts []string
	for i, v := range distinct {
		verb := " have "
		if len(having[v]) == 1 {
			verb = " has "
		}
		text := Numbered(who, having[v]) + verb
		if i == 0 {
			text += setting + " "
		}
		parts = append(parts, text+cmp.Or(v, "none"))
	}
	return strings.Join(parts, ", ")
}

// IsHost reports whether text is an IP address, or looks like the name of a host.
func IsHost(text string) bool {
	if _, err := netip.ParseAddr(text); err == nil {
		return true
	}
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
	return text != "" && len(text) <= 255 && strings.Trim(text, letters) == ""
}
