package arg

import "strings"

// OneOf is the remedy for a word that is none of those that are known: the one that was probably
// meant, if there is one, and all.
func OneOf(word string, known []string) string {
	all := "want one of " + strings.Join(known, ", ")
	if len(known) < 3 {
		all = "want " + strings.Join(known, " or ")
	}
	return Meant(word, known) + all
}

// Meant asks for the word that was probably meant, such as "did you mean train? ", or is "".
func Meant(word string, known []string) string {
	if near := Nearest(word, known); near != "" {
		return "did you mean " + near + "? "
	}
	return ""
}

// Nearest is the known word that the fewest letters added, dropped, replaced or exchanged make of a
// word, the first of several. Where more than a third of its letters would change, none was meant: "".
func Nearest(word string, known []string) string {
	best, least := "", 0
	for _, k := range known {
		d := distance(strings.ToLower(word), strings.ToLower(k))
		if d <= max(1, len(k)/3) && d < len(k) && (best == "" || d < least) {
			best, least = k, d
		}
	}
	if best != "" {
		return best
	}
	for _, k := range known { // a part of its name, as fashon, or a short form, as fp16
		first, _, parts := strings.Cut(k, "-")
		if parts && len(first) > 3 && distance(strings.ToLower(word), first) <= len(first)/3 ||
			shortOf(word, k) {
			return k
		}
	}
	return ""
}

// shortOf reports whether a word with a number at its end is short for another, as fp16 for float16.
func shortOf(word, long string) bool {
	const digits = "0123456789"
	name, longName := strings.TrimRight(word, digits), strings.TrimRight(long, digits)
	return name != "" && longName != "" && len(name) < len(word) && len(name) < len(longName) &&
		name[0] == longName[0] && word[len(name):] == long[len(longName):]
}

// distance is how many bytes are added, dropped, replaced or exchanged with their neighbour to make
// b of a (optimal string alignment).
func distance(a, b string) int {
	var before, last []int       // by length of b's beginning, from beginnings of a that are two and one shorter
	row := make([]int, len(b)+1) // from the beginning of a that was read
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			replaced := last[j]
			if a[i] != b[j] {
				replaced++
			}
			row[j+1] = min(replaced, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
