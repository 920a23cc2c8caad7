package fleet

import (
	"testing"
	"testing/synctest"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
)

func TestAliasesStandForTheirModels(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		b.SetAliases(config.ModelAliases{"gpt": "m", "tuned": "lora", "by-path": "/models/m", "gone": "x", "m2": "m"})
		b.prober.set(well, urlA)
		b.prober.says(urlA, &Facts{Facts: engine.Facts{
			Models: []ModelInfo{{ID: "m", MaxModelLen: 100}, {ID: "m2"}}, Adapters: []ModelInfo{{ID: "lora", Parent: "m"}}, ModelPath: "/models/m",
		}})
		b.add(WorkerSpec{URL: urlA})
		synctest.Wait()
		for name, want := range map[string][2]string{
			"gpt": {"m", ""}, "tuned": {"m", "lora"}, "by-path": {"m", ""}, "gone": {"x", ""}, "m2": {"m", ""}, "m": {"m", ""},
		} {
			if pool, adapter := b.Resolve(name); pool != want[0] || adapter != want[1] {
				t.Errorf("%s: pool %q, adapter %q", name, pool, adapter)
			}
			if b.Listed(name) != (name != "gone") {
				t.Errorf("%s: listed %t", name, b.Listed(name))
			}
		}
		listed := map[string]string{}
		for _, m := range b.Models() {
			if _, twice := listed[m.ID]; twice {
				t.Errorf("%s is listed twice", m.ID)
			}
			listed[m.ID] = m.Root
		}
		for name, root := range map[string]string{"gpt": "m", "tuned": "lora", "by-path": "/models/m", "m2": "m"} {
			if listed[name] != root {
				t.Errorf("%s is listed with the root %q", name, listed[name])
			}
			if m, ok := b.Model(name); !ok || m.ID != name || m.Root != root || name != "tuned" && m.MaxModelLen != 100 {
				t.Errorf("%s: %+v, %t", name, m, ok)
			}
		}
		if _, ok := listed["gone"]; ok || len(listed) != 6 {
			t.Errorf("listed: %v", listed)
		}
		if _, n := b.SolePool(); n != 1 {
			t.Errorf("%d models", n)
		}

		b.SetAliases(nil)
		if _, ok := b.Alias("gpt"); ok || len(b.Models()) != 3 {
			t.Errorf("after a reload without aliases: %+v", b.Models())
		}
	})
}
