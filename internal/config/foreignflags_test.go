package config

import (
	"regexp"
	"strings"
	"testing"
)

// A command line of another router is accepted at once, and one line says what of it has no
// meaning here, and why.
func TestForeignFlagsAreToldInOneLine(t *testing.T) {
	args := "--policy cache_aware --cache-threshold 0.3 --overload-token-usage-threshold 0.9 --balance-abs-threshold 64 --balance-rel-threshold=1.5" +
		" --balance-token-usage-threshold 1.0 --eviction-interval 120 --eviction-interval-secs 60 --max-tree-size 67108864 --block-size 16 --overlap-decay 0" +
		" --selection-temperature 0 --selection-policy cache-aware-default --cache-index hash --cache-boundaries 1024 4096 --cache-ttl-secs 180 --kv-index positional --max-idle-secs 14400 --assignment-mode min_load" +
		" --prefix-token-count 128 --prefix-hash-load-factor 1.5 --prefix-hash-balance-abs-threshold 4 --worker-urls http://a"
	cfg, warnings, err := Load(words(args), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(warnings) != 1 {
		t.Fatalf("%d warnings: %v", len(warnings), warnings)
	}
	line := warnings[0].String()
	for _, x := range foreignFlags {
		if !strings.Contains(line, "--"+x.name) || !strings.Contains(line, x.why) {
			t.Errorf("%q does not say why --%s has no meaning", line, x.name)
		}
	}
	if strings.Contains(line, "\n") || strings.Count(line, "(load is a part") != 1 {
		t.Errorf("not one line, or a reason twice: %q", line)
	}
	if cfg.Routing.CacheMinMatch != 0.3 || *cfg.Admission.OverloadUsage != 0.9 || cfg.Routing.PrefixTokenCount != 128 {
		t.Errorf("mapped flags: %+v, %v", cfg.Routing, *cfg.Admission.OverloadUsage)
	}
	_, warnings, err = Load(words("--worker-urls http://a"), nil, nil)
	if err != nil || len(warnings) != 0 {
		t.Errorf("without them: %v, %v", warnings, err)
	}
}

// What a line says to use instead is there.
func TestForeignFlagsNameOptionsThatExist(t *testing.T) {
	known := map[string]bool{}
	schema().walk(func(o *option) { known[o.flag] = true })
	for _, x := range foreignFlags {
		for _, name := range regexp.MustCompile(`--([a-z-]+)`).FindAllStringSubmatch(x.why, -1) {
			if !known[name[1]] {
				t.Errorf("--%s is explained by --%s, which does not exist", x.name, name[1])
			}
		}
	}
}
