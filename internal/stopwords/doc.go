// Package stopwords finds stop strings in text that comes in pieces, and passes on the
// text up to them.
//
// A Set is the stop strings of a request, compiled (an Aho-Corasick automaton). A Matcher
// is the place of one text in it; the choices of a request share the Set:
//
//	var set stopwords.Set
//	set.Compile([]string{"\n\n", "END"}, false)
//	m := set.Begin()
//	out, matched := m.Append(nil, []byte("... E")) // "... ", -1: "E" may become "END"
//	out, matched = m.Append(out, []byte("nough"))  // "... Enough", -1
//	out = m.Flush(out)                             // the text ends: what was held back
//
// # Which stop string
//
// The rules are those of vLLM's check_stop_strings, for text that grows by a token at a
// time:
//
//   - The stop string that ends first wins. Of several that end at the same byte the one
//     that comes first in the list wins, not the longest.
//   - Of one that occurs more than once the first occurrence counts.
//   - The text ends before the stop string, or behind it when stop strings are included.
//   - With a least number of tokens (min_tokens), a stop string that ends within those
//     tokens does not count, and one that begins in them and ends later does: see Pass.
//
// # What is held back
//
// Only the longest end of the text that is the beginning of a stop string, and nothing when
// stop strings are included. vLLM holds back the length of the longest stop string less one
// character always; the whole text is the same, its pieces come earlier here.
//
// Text and stop strings are bytes. In valid UTF-8 no match begins or ends within a
// character. Nothing here is bounded: how many stop strings a request may have, and how
// long, is its reader's business.
package stopwords
