"""Parts of the HTML report: data of its pictures, drawings as SVG, and the page's own style and script."""
