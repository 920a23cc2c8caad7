package config

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// foreignFlags are flags by which other routers (SGLang's model gateway, vLLM's router) set
// how they choose by caches, and that have no meaning here. They are accepted, with any
// value, so that a command line can be taken over as it is. Flags with an equivalent here
// are aliases of it.
var foreignFlags = []struct{ name, why string }{
	{"balance-abs-threshold", "load is a part of the cost of each worker, see --cache-weight"},
	{"balance-rel-threshold", "load is a part of the cost of each worker, see --cache-weight"},
	{"balance-token-usage-threshold", "load is a part of the cost of each worker, see --cache-weight"},
	{"eviction-interval", "the index is bounded at each insertion, see --kv-index-memory"},
	{"eviction-interval-secs", "the index is bounded at each insertion, see --kv-index-memory"},
	{"max-tree-size", "there is no tree, see --kv-index-memory"},
	{"block-size", "events have the block size of their engine, and text is cut by bytes"},
	{"overlap-decay", "every cached token counts alike, see --cache-weight"},
	{"selection-temperature", "the least cost is chosen, without chance"},
	{"selection-policy", "--policy, --prefill-policy and --decode-policy name the rule"},
	{"cache-index", "there is one index"},
	{"cache-boundaries", "prompts are cut into blocks of one size"},
	{"cache-ttl-secs", "what a worker holds is forgotten when its cache drops it, not by time"},
	{"kv-index", "there is one index"},
	{"max-idle-secs", "it is of the policy manual, which is not one of --policy"},
	{"assignment-mode", "it is of the policy manual, which is not one of --policy"},
}

// addForeignFlags declares them, hidden.
func (f *Flags) addForeignFlags(fs *pflag.FlagSet) {
	for _, x := range foreignFlags {
		r := &rawFlag{typ: "TEXT"}
		f.foreign = append(f.foreign, r)
		fs.VarPF(r, x.name, "", "Of other routers. It has no meaning here: "+x.why+".").Hidden = true
	}
}

// warnForeign names those that were given in one warning, with why they mean nothing.
func (l *loader) warnForeign(f *Flags) {
	type group struct {
		why   string
		names []string
	}
	var groups []group
	for i, r := range f.foreign {
		if !r.set() {
			continue
		}
		x := foreignFlags[i]
		at := slices.IndexFunc(groups, func(g group) bool { return g.why == x.why })
		if at < 0 {
			at = len(groups)
			groups = append(groups, group{why: x.why})
		}
		groups[at].names = append(groups[at].names, "--"+x.name)
	}
	if len(groups) == 0 {
		return
	}
	var parts []string
	for _, g := range groups {
		parts = append(parts, strings.Join(g.names, ", ")+" ("+g.why+")")
	}
	l.warn("", "command line", "ignored, as they have no meaning here: %s", strings.Join(parts, "; "))
}
