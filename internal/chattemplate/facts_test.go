package chattemplate

import "testing"

// The rule is the one by which engines behind HTTP choose the form of a content.
func TestContentIsPartsWhereTheTemplateLoopsOverIt(t *testing.T) {
	for source, want := range map[string]bool{
		"{% for m in messages %}{{ m.content }}{% endfor %}":                                                                                                      false,
		"{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}":                                                                     true,
		"{% for m in messages %}{% for c in m['content'] | list %}{{ c }}{% endfor %}{% endfor %}":                                                                true,
		"{% for m in messages[1:] %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}":                                                                      true,
		"{% set l = messages %}{% for m in l %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}":                                                           true,
		"{% set l = messages[1:] %}{% set k = l %}{% for m in k %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}":                                        true,
		"{% for m in messages %}{% set content = m.content %}{% for c in content %}{{ c }}{% endfor %}{% endfor %}":                                               true,
		"{% for m in messages %}{% set text = m.content %}{% for c in text %}{{ c }}{% endfor %}{% endfor %}":                                                     false,
		"{% macro f(x) %}{% for c in x %}{{ c }}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.content) }}{% endfor %}":                                  true,
		"{% macro f(x) %}{% for c in x %}{{ c }}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(x=m.content) }}{% endfor %}":                                true,
		"{% macro f(content) %}{% for c in content %}{{ c }}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.role) }}{% endfor %}":                         false,
		"{% set a, b = messages, 1 %}{% for m in messages %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}":                                              true,
		"{% set ns = namespace() %}{% set ns.l = messages %}{% for m in messages %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}":                       false,
		"{% for a, b in messages %}{% for c in b.content %}{{ c }}{% endfor %}{% endfor %}":                                                                       false,
		"{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% endif %}{% for m in rest %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}": true,
	} {
		tm, err := Parse(source, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := tm.Facts().ContentParts; got != want {
			t.Errorf("%s: got %v", source, got)
		}
	}
}

func TestFactsTellWhatATemplateUses(t *testing.T) {
	tm, err := Parse(`{% if tools %}{{ f(a=x | join(y)) }}{% endif %}{% call m(z) %}{{ role == "developer" }}{% endcall %}`, Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := tm.Facts()
	for _, name := range []string{"tools", "f", "x", "y", "m", "z", "role"} {
		if !f.Uses(name) {
			t.Errorf("%s is used", name)
		}
	}
	if f.Uses("a") || f.Uses("join") || !f.Developer {
		t.Errorf("got %+v", f)
	}
}
