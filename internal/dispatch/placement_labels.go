package dispatch

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/openai"
)

// readLabels reads the labels that ranks must have, or had better have, out of
// headers: "zone=a, gpu=h100", and with a weight "zone=a;w=5".
func (x *placement) readLabels() *failure {
	h := x.call.Header
	require, f := labelsOf(h, HeaderRequireLabels)
	if f != nil {
		return f
	}
	prefer, f := labelsOf(h, HeaderPreferLabels)
	if f != nil {
		return f
	}
	for _, r := range require {
		for l := range x.spec.Require {
			x.spec.Require[l] = append(x.spec.Require[l], r.Label)
		}
	}
	for l := range x.spec.Prefer {
		x.spec.Prefer[l] = prefer
	}
	return nil
}

// maxLabels bounds the labels of one header.
const maxLabels = 16

// Headers by which clients narrow the ranks their request may run on.
const (
	HeaderRequireLabels = "X-Sluice-Require-Labels"
	HeaderPreferLabels  = "X-Sluice-Prefer-Labels"
)

func labelsOf(h http.Header, name string) ([]admission.Preference, *failure) {
	var out []admission.Preference
	for _, line := range h[name] {
		for one := range strings.SplitSeq(line, ",") {
			one = strings.TrimSpace(one)
			if one == "" {
				continue
			}
			pair, weight, weighted := strings.Cut(one, ";w=")
			key, value, ok := strings.Cut(pair, "=")
			w := 1
			if weighted {
				n, err := strconv.Atoi(weight)
				ok = ok && err == nil && n > 0 && n <= 1_000_000 && name == HeaderPreferLabels
				w = n
			}
			if !ok || key == "" || len(out) == maxLabels {
				return nil, &failure{reason: reasonBadRequest,
					local: openai.InvalidRequest("", "the header %s must be up to %d labels as in \"zone=a, gpu=h100\"; %s takes a weight as in \"zone=a;w=5\"", name, maxLabels, HeaderPreferLabels)}
			}
			out = append(out, admission.Preference{Label: admission.Label{Key: key, Value: value}, Weight: w})
		}
	}
	return out, nil
}
